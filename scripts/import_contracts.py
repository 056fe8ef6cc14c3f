"""A contract for import-linter: a package that stands on the standard library alone."""

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class StandardLibraryOnly(Contract):
    """The modules of `package` import only one another and the standard library."""

    package = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 -- import-linter's signature
        """Kept when no import leaves `package` for anything but the standard library."""
        package = str(self.package)
        bad = []
        for importer in sorted({package, *graph.find_descendants(package)}):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                inside = imported == package or imported.startswith(package + ".")
                if not inside and imported.partition(".")[0] not in sys.stdlib_module_names:
                    bad.append(f"{importer} imports {imported}")
        return ContractCheck(kept=not bad, metadata={"bad": bad})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line an offending import."""
        for line in check.metadata["bad"]:
            output.print_error(f"- {line}")

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config.lines import key_lines

SCALARS = [
    "1",
    "-1.5e3",
    "true",
    "1979-05-27 07:32:00Z",
    '""',
    '"a # \\" [b] = {"',
    "'c:\\'",
    "''",
    '"""x\n]\n"y" \\""""',
    '"""\na\n"""""',
    "'''q\n= '\n''''",
    '"""a \\\n   b"""',
]
BLANKS = ["", "\n", "# [x] = {\n", "\n  # 'a\n\n", "\r\n"]


class Writer:
    """Writes a random document and notes the line at which each thing begins."""

    def __init__(self, draw):
        self.draw, self.text, self.lines, self.names = draw, "", {}, 0

    def mark(self, path):
        self.lines.setdefault(path, self.text.count("\n") + 1)
        return path

    def name(self):
        self.names += 1
        plain = f"k{self.names}"
        shown = [plain, f'"{plain}.\\u0041"', f"'{plain} ]'"]
        word = self.draw(st.sampled_from(shown))
        return word, tomllib.loads(f"{word} = 1").popitem()[0]

    def key(self, table, *, parts):
        path, start = table, len(self.text)
        for _ in range(self.draw(st.integers(1, parts))):
            word, name = self.name()
            path = self.mark((*path, name))
            self.text += self.draw(st.sampled_from([".", " . "])) if start != len(self.text) else ""
            self.text += word
        return path

    def pair(self, table, depth):
        path = self.key(table, parts=3)
        self.text += self.draw(st.sampled_from(["=", " = ", "\t="]))
        self.value(path, depth)

    def value(self, path, depth):
        kind = self.draw(st.sampled_from(["scalar", "array", "inline"] if depth else ["scalar"]))
        if kind == "scalar":
            self.text += self.draw(st.sampled_from(SCALARS))
        elif kind == "array":
            self.text += "["
            for index in range(self.draw(st.integers(0, 3))):
                self.text += self.draw(st.sampled_from(BLANKS))
                self.value(self.mark((*path, index)), depth - 1)
                self.text += self.draw(st.sampled_from(BLANKS)) + ","
            self.text += self.draw(st.sampled_from(BLANKS)) + "]"
        else:
            self.text += "{"
            for index in range(self.draw(st.integers(0, 2))):
                self.text += ", " if index else " "
                self.pair(path, depth - 1)
            self.text += "}"

    def document(self):
        table = ()
        arrays = {}
        for _ in range(self.draw(st.integers(0, 8))):
            self.text += self.draw(st.sampled_from(BLANKS))
            kind = self.draw(st.sampled_from(["pair", "pair", "table", "array", "again", "below"]))
            if kind == "pair":
                self.pair(table, 2)
            elif kind == "table":
                self.text += "["
                table = self.key((), parts=2)
                self.text += "]"
            elif kind == "array":
                self.text += "[["
                path = self.key((), parts=1)
                self.text += "]]"
                arrays[path] = 0
                table = self.mark((*path, 0))
            elif arrays:
                path = self.draw(st.sampled_from(sorted(arrays)))
                word = f'"{path[0]}"'
                if kind == "again":
                    arrays[path] += 1
                    table = self.mark((*path, arrays[path]))
                    self.text += f"[[{word}]]"
                else:
                    inner, name = self.name()
                    table = self.mark((*path, arrays[path], name))
                    self.text += f"[ {word} . {inner} ]"
            self.text += self.draw(st.sampled_from(["\n", " # end\n", "\r\n"]))


def paths(value, at=()):
    """Every path in a parsed document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from paths(inner, (*at, key))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_key_and_item_is_found_at_its_line(data):
    writer = Writer(data.draw)
    writer.document()
    found = key_lines(writer.text)
    assert found == writer.lines
    assert set(found) == set(paths(tomllib.loads(writer.text)))

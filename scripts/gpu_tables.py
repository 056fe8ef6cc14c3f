"""Write the tables of measured kernels that `headway.gpus` ships, from aiconfigurator's.

`python scripts/gpu_tables.py FOLDER`: with aic_gemm_llama_shapes.csv, aic_allreduce.csv,
aic_prefill_attention_hd128.csv and aic_decode_attention_hd128.csv, columns as there. Attention
over several prompts at once is left out: steps add up those of one prompt.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

TABLES: Final = Path(__file__).resolve().parents[1] / "src" / "headway" / "gpus" / "tables"
SOURCE: Final = "ai-dynamo/aiconfigurator 095f58a51 (2026-08-21), kernels inside vLLM; Apache-2.0"


def _rows(folder: Path, name: str) -> Iterator[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        yield from csv.DictReader(file)


def _matrix(found: dict[str, dict[int, float]]) -> dict[str, Any]:
    """Sizes once, and a row of times for each key, None where it wasn't measured."""
    sizes = sorted({size for row in found.values() for size in row})
    rows = {key: [row.get(size) for size in sizes] for key, row in sorted(found.items())}
    return {"sizes": sizes, "times_us": rows}


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """By GPU, what its file holds."""
    linear: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    prefill: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    decode: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    reduce: Any = defaultdict(lambda: defaultdict(dict))
    versions = {}
    for row in _rows(folder, "aic_gemm_llama_shapes.csv"):
        versions[row["gpu"]] = row["vllm"]
        key = f"{row['n']},{row['k']}"
        linear[row["gpu"]][row["gemm_dtype"]][key][int(row["m"])] = float(row["latency_us"])
    for row in _rows(folder, "aic_prefill_attention_hd128.csv"):
        if row["batch_size"] == "1":
            key = f"{row['num_heads']},{row['num_key_value_heads']}"
            of_dtype = prefill[row["gpu"]][row["kv_cache_dtype"]]
            of_dtype[key][int(row["isl"])] = float(row["latency_us"])
    for row in _rows(folder, "aic_decode_attention_hd128.csv"):
        key = f"{row['num_heads']},{row['num_key_value_heads']},{row['batch_size']}"
        of_dtype = decode[row["gpu"]][row["kv_cache_dtype"]]
        of_dtype[key][int(row["context"])] = float(row["latency_us"])
    for row in _rows(folder, "aic_allreduce.csv"):
        reduce[row["gpu"]][row["num_gpus"]][int(row["message_size"])] = float(row["latency_us"])
    return {
        gpu.replace("_", "-"): {
            "source": SOURCE,
            "vllm": version,
            "linear": {dtype: _matrix(each) for dtype, each in linear[gpu].items()},
            "prefill_attention": {dtype: _matrix(each) for dtype, each in prefill[gpu].items()},
            "decode_attention": {dtype: _matrix(each) for dtype, each in decode[gpu].items()},
            "all_reduce": _matrix(reduce[gpu]),
        }
        for gpu, version in versions.items()
    }


def main() -> None:
    """Write one file a GPU."""
    TABLES.mkdir(parents=True, exist_ok=True)
    for gpu, table in tables(Path(sys.argv[1])).items():
        text = json.dumps(table, separators=(",", ":")).replace("],", "],\n")
        (TABLES / f"{gpu}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

"""How long an engine step takes on a GPU, from first principles; what a model takes of its memory.

    step = fixed + efficiency * (linear layers over all tokens of the step, together
                                 + attention of each prefill chunk
                                 + attention of all decodes
                                 + all-reduces + the output layer for each request)

`shape` says what a model computes, `kernels` how long one kernel takes (measured, or from a GPU's
specification), `step` adds them up. Tables of measured kernels are read by `headway.gpus`.
`footprint` counts what a model takes of GPU memory (`quantization`: bits of its weights), `fit`
whether it fits an engine, and what would. `dimensions` reads config.json for both. `emulation` is
what is asked of an engine on GPUs that aren't there.
"""

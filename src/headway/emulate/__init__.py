"""GPUs that aren't there: vLLM as it is, with only the computation replaced by waiting for it.

vLLM loads `plugin` in all of its processes. Where the environment asks for an emulation
(`settings`) it gets another platform (`platform`): one that says what such a GPU would say, and
has `executor` run the model. That answers as a GPU would in what vLLM asks at start (`memory`), and
in every step: `batch` reads what the step computes, `core.hardware` says how long that takes,
`device` waits, `answers` (`grammar`, where an answer must follow one) chooses the tokens.
`lateness` tells whether this machine kept up; `faults` makes an engine misbehave on demand.
"""

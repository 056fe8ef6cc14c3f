"""GPUs that aren't there: vLLM as it is, with only the computation replaced by waiting for it.

vLLM loads `plugin` in all of its processes. Where the environment asks for an emulation
(`core.hardware.emulation`), vLLM gets another platform (`platform`): it says what such a GPU would
say, and has `executor` run the model. That answers as a GPU would what vLLM asks at start
(`memory`), and in every step: `batch` reads what the step computes, `core.hardware` says how long
that takes, `device` waits, `sampler` chooses the tokens (`answers`; `grammar`, where an answer
follows one). `report` tells what is emulated and whether this machine kept up (`lateness`);
`faults` makes an engine misbehave on demand.
"""

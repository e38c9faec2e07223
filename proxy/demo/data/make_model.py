"""Turns a GGUF file into a model folder that vLLM loads: ``python make_model.py model.gguf folder``.

Run by the engines' interpreter. The weights are dequantised to float32 (about 20 s and 540 MB for SmolLM2-135M), so
that every engine starts from the same numbers whatever precision it then serves them in.
"""

import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(gguf: pathlib.Path, target: pathlib.Path) -> None:
    """Writes weights, configuration and tokenizer of `gguf` into the folder `target`."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain by now, but the model still calls itself quantised and would refuse to be saved, or be
    # saved with a configuration that makes vLLM look for GGUF tensors.
    model.hf_quantizer = None
    vars(model).pop("quantization_method", None)
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))

"""A Hugging Face training on two processes of one CPU: a program for torchrun, with a folder."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "integrations")]


def main(folder: Path) -> None:
    from hf_models import Stops, mfu_of, trainer_of

    trainer, ours, _ = trainer_of(
        folder,
        gradient_accumulation_steps=2,
        include_num_input_tokens_seen="all",
        ddp_find_unused_parameters=False,
        save_strategy="steps",
        save_steps=3,
    )
    trainer.train()
    assert ours.meter is not None
    run = ours.meter.run
    found = {
        "rank": run.header.rank,
        "wrapper": type(trainer.model_wrapped).__name__,
        "mfu": mfu_of(ours),
        "tokens": [step.tokens for step in run.steps],
        "tokens_seen": trainer.state.num_input_tokens_seen,
        "pauses": [pause.name for pause in run.pauses],
        "log_dir": None if ours.meter.log_dir is None else ours.meter.log_dir.name,
    }
    # A training that is given up, in a process that ends.
    trainer, _, _ = trainer_of(folder, options={"log_dir": folder / "left"})
    trainer.add_callback(Stops(3, KeyboardInterrupt()))
    with contextlib.suppress(KeyboardInterrupt):
        trainer.train()
    (folder / f"rank{run.header.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

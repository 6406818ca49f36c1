"""Train the demo model on generated text: `python -m models.demo.train --out DIR --minutes 60`.

The learning rate follows a cosine over running time, so a slow or paused machine still ends with a full schedule.
Single-threaded worker processes each take their rows of a batch and average gradients once a step: threads that meet
at every matmul stall when another program takes a core.
Checkpoints every two minutes; the same command continues from the last one.
`--export FOLDER` writes it for transformers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer

from models.demo.tokenizer import packed_rows, train_tokenizer
from models.demo.train_model import DemoConfig, DemoModel

SEED = 20
LONG_EVERY = 10  # one step in this many has rows of the full context


class Trainer:
    """Model, optimiser and position in the corpus; everything that a checkpoint holds."""

    def __init__(self, out: Path, args: argparse.Namespace, rank: int = 0) -> None:
        self.out, self.args = out, args
        out.mkdir(parents=True, exist_ok=True)
        self.tokenizer = load_tokenizer(out)
        torch.manual_seed(SEED)
        self.config = DemoConfig(vocab_size=self.tokenizer.get_vocab_size())
        self.model = DemoModel(self.config, torch.bfloat16 if args.bf16 else torch.float32)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        gains = [p for name, p in self.model.named_parameters() if name.endswith(("q_norm", "k_norm"))]
        vectors = [p for p in self.model.parameters() if p.dim() == 1 and not any(p is gain for gain in gains)]
        groups = [
            {"params": matrices, "weight_decay": 0.05, "rate": 1.0},
            {"params": vectors, "weight_decay": 0.0, "rate": 1.0},
            # with normed queries and keys only these gains make attention sharp enough to look up one word in hundreds
            {"params": gains, "weight_decay": 0.0, "rate": 6.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.97), fused=True)
        self.step, self.tokens, self.seconds, self.next_conversation = 0, 0, 0.0, 0
        self.rank, self.progress = rank, 0.0
        # every gradient is a view of one buffer, so averaging is one call; the last two places carry the clock
        self.shared = torch.zeros(sum(p.numel() for p in self.model.parameters()) + 2)
        offset = 0
        for p in self.model.parameters():
            p.grad = self.shared[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        if (out / "checkpoint.pt").exists():
            self._load(out / "checkpoint.pt")

    def _load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step, self.tokens = saved["step"], saved["tokens"]
        self.seconds, self.next_conversation = saved["seconds"], saved["next_conversation"]

    def save(self) -> None:
        """Write the checkpoint beside the old one, then put it in its place."""
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "next_conversation": self.next_conversation,
        }
        torch.save(state, self.out / "checkpoint.tmp")
        os.replace(self.out / "checkpoint.tmp", self.out / "checkpoint.pt")

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This worker's share of the next rows, ids and loss weights [B, T]; moves on in the corpus past all shares."""
        length = self.config.max_position_embeddings if self.step % LONG_EVERY == LONG_EVERY - 1 else 512
        rows, source = [], packed_rows(self.tokenizer, SEED, self.next_conversation, length)
        for _ in range(self.args.batch_tokens // length):
            ids, weights, self.next_conversation = next(source)
            rows.append((ids, weights))
        mine = rows[self.rank :: self.args.workers]
        return torch.tensor([r[0] for r in mine]), torch.tensor([r[1] for r in mine])

    def train_step(self) -> tuple[float, float]:
        """One update; returns this worker's mean loss of the assistant's tokens and the balance loss (1 is even)."""
        rate = learning_rate(self.args.lr, self.step, self.progress)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["rate"]
        ids, weights = self.batch()
        logits, balance = self.model(ids)
        losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        w = weights[:, 1:].flatten()
        loss = (losses * w).sum() / w.sum()
        self.shared.zero_()
        (loss + 0.01 * balance).backward()
        self.shared[-2], self.shared[-1] = self.seconds, self._progress_here()
        if self.args.workers > 1:
            dist.all_reduce(self.shared)
            self.shared /= self.args.workers
        self.seconds, self.progress = self.shared[-2:].tolist()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        self.tokens += ids.numel() * self.args.workers
        return float(losses.detach()[w == 1].mean()), float(balance.detach())

    def _progress_here(self) -> float:
        """The share of the time that is used up, by the running time or by the hour that was set."""
        minutes: float = self.args.minutes
        finish_by: float | None = self.args.finish_by
        if finish_by is None:
            return self.seconds / (60 * minutes)
        return self.seconds / (self.seconds + max(0.0, finish_by - time.time()) + 1e-9)

    def run(self) -> None:
        """Train until the time is used up; the first worker writes log and checkpoints."""
        recent: deque[float] = deque(maxlen=51)
        saved_at = logged_at = time.monotonic()
        with open(self.out / "log.jsonl", "a") as log:
            while self.progress < 1:
                began = time.monotonic()
                loss, balance = self.train_step()
                recent.append(time.monotonic() - began)
                # a stopped process must not lose its schedule, so a step counts for at most three usual ones
                self.seconds += min(recent[-1], 3 * statistics.median(recent))
                if self.rank == 0 and time.monotonic() - logged_at > 10:
                    logged_at = time.monotonic()
                    self._log(log, loss, balance, statistics.median(recent))
                if self.rank == 0 and time.monotonic() - saved_at > 120:
                    self.save()
                    saved_at = time.monotonic()
        if self.rank == 0:
            self.save()

    def _log(self, log: IO[str], loss: float, balance: float, step_s: float) -> None:
        row = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(loss, 4),
            "balance": round(balance, 3),
            "step_s": round(step_s, 3),
            "progress": round(self.progress, 4),
        }
        log.write(json.dumps(row) + "\n")
        log.flush()


def work(rank: int, args: argparse.Namespace) -> None:
    """One worker process of a run."""
    torch.set_num_threads(1 if args.workers > 1 else 2)
    if args.workers > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{args.out.resolve()}/rendezvous", rank=rank, world_size=args.workers
        )
    Trainer(args.out, args, rank).run()


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Linear warm-up over 100 steps, then a cosine over the share of the time used, down to a fiftieth."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return peak * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * cosine)


def load_tokenizer(out: Path) -> Tokenizer:
    """The run's tokenizer, trained on first use."""
    path = out / "tokenizer.json"
    if not path.exists():
        train_tokenizer(SEED).save(str(path))
    return Tokenizer.from_file(str(path))


def main() -> None:
    """Parse the options, then train or export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run: tokenizer, checkpoint, log")
    parser.add_argument("--minutes", type=float, default=60.0, help="running time of the whole schedule")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument(
        "--finish-by", type=float, help="end at this time (seconds since 1970) instead of after --minutes"
    )
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True, help="matmuls in bfloat16")
    parser.add_argument("--export", type=Path, help="write the last checkpoint as a transformers folder and end")
    args = parser.parse_args()
    if args.export is None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "rendezvous").unlink(missing_ok=True)
        load_tokenizer(args.out)  # made once, before the workers read it
        if args.workers > 1:
            mp.spawn(work, (args,), nprocs=args.workers)
        else:
            work(0, args)
        return
    trainer = Trainer(args.out, args)
    from models.demo.export import export

    print(f"largest difference from transformers: {export(trainer.model, trainer.tokenizer, args.export):.2e}")


if __name__ == "__main__":
    main()

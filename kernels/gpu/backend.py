"""`GpuBackend`: the op set on torch tensors, by Triton kernels that read GGUF blocks in place.

On a CUDA or ROCm device, or on the CPU through Triton's interpreter (TRITON_INTERPRET=1 before triton is imported),
which shows that kernels are right and not how fast they are. Ops return fresh tensors and never wait for the device,
except those that answer on the host: `to_host` and `route`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton

from kernels.backend import (
    SILU,
    Activations,
    ExpertGroups,
    ExpertTable,
    GatedUnit,
    KVLayer,
    NotNumbersError,
    RopeTable,
    Weight,
)
from kernels.delta_rule import DeltaRule
from kernels.gpu import attention as attention_ops
from kernels.gpu import (
    conv,
    delta_rule,
    embed,
    experts_decode,
    experts_prefill,
    gates,
    kv,
    layer_norm,
    norm,
    router,
    sparse_mixer,
)
from kernels.gpu import linear as linear_ops
from kernels.gpu import rope as rope_ops
from kernels.gpu.covering import CoveringBackend
from kernels.gpu.dense import DenseTables
from kernels.gpu.expert_calls import DeviceGroups, DeviceTable, device_table, follow, upload_groups
from kernels.gpu.lane_order import LaneOrders
from kernels.gpu.mailbox import Mailbox
from kernels.gpu.matmul import matmul
from kernels.gpu.staging import Staging
from kernels.gpu.tiling import DECODE_TOKENS, INTERPRETER, Device, lanes_of
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType, row_bytes
from kernels.router_spec import RouterSpec


def this_device() -> Device:
    """The current GPU, or the interpreter where kernels run through it. Raises RuntimeError when there is neither."""
    if triton.knobs.runtime.interpret:
        return INTERPRETER
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    found = torch.cuda.get_device_properties()
    arch = getattr(found, "gcnArchName", "").split(":")[0] if torch.version.hip else f"sm_{found.major}{found.minor}"
    return Device(arch, found.multi_processor_count)


class GpuBackend:
    """`kernels.backend.Backend` for one GPU. `device` names what tiles are chosen for, this machine's by default."""

    name = "cuda"

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or this_device()
        self.torch_device = torch.device("cpu" if self.device.interpreted or device is not None else "cuda")
        self._staging = Staging(self.torch_device)
        self._mailbox = Mailbox(self.torch_device)
        self._noted_route: tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] | None = None
        self._orders = LaneOrders(self.device)
        self._tables: dict[int, DeviceTable] = {}
        self._dense = DenseTables(self.upload)
        self._groups: DeviceGroups | None = None
        self._position = torch.zeros(1, dtype=torch.int32, device=self.torch_device)
        self._position_value = 0
        self._pairs: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """A small host array on the device, in the order of the current stream; the host does not wait."""
        return self._staging.upload(array)

    def from_host(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.torch_device)

    def to_host(self, array: torch.Tensor) -> np.ndarray:
        return self._mailbox.fetch([array])[0]

    def weight(
        self, data: np.ndarray | torch.Tensor, quant_type: QuantType, n_rows: int, n_cols: int
    ) -> Weight:
        """Copies host memory to the device; a tensor that lies there is wrapped. Raises ValueError for a size that does
        not match or a type without GPU kernels.
        """
        size = n_rows * row_bytes(quant_type, n_cols)
        lanes_of(quant_type, n_cols)
        if data.dtype not in (np.uint8, torch.uint8) or data.nbytes != size:
            got = f"{data.nbytes} bytes of {data.dtype}"
            raise ValueError(f"{quant_type.name} [{n_rows}, {n_cols}] takes {size} uint8, got {got}")
        held = self.from_host(data) if isinstance(data, np.ndarray) else data
        return Weight(held.reshape(n_rows, -1), quant_type, n_rows, n_cols)

    def kv_layer(
        self, num_kv_heads: int, capacity: int, head_dim: int, value_dim: int, k_dtype: str, v_dtype: str
    ) -> KVLayer:
        rows = ((head_dim, k_dtype), (value_dim, v_dtype))
        k, v = (kv.new_storage(num_kv_heads, capacity, width, dtype, self.torch_device) for width, dtype in rows)
        return KVLayer(k, v, k_dtype, v_dtype)

    def embed(self, table: Weight, token_ids: np.ndarray) -> torch.Tensor:
        if token_ids.size and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < table.n_rows:
            raise ValueError(f"token ids must lie in 0..{table.n_rows - 1}, got {token_ids.min()}..{token_ids.max()}")
        return embed.embed(table, self.upload(token_ids.astype(np.int64, copy=False)), self.device)

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, readers: Sequence[Weight] = ()
    ) -> Activations:
        return Activations(norm.norm(x, weight, eps, self.device))

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Activations:
        return Activations(layer_norm.layer_norm(x, weight, bias, eps, self.device))

    def head_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.head_norm(x, weight, eps, self.device)

    def concatenate(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(rows))

    def activations(self, x: torch.Tensor) -> Activations:
        return Activations(x)

    def linear(self, a: Activations, *weights: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        n_tokens, width = a.x.shape
        if any(w.n_cols != width for w in weights):
            raise ValueError(f"weights of {[w.n_cols for w in weights]} columns for activations of width {width}")
        n_rows = sum(w.n_rows for w in weights)
        out = torch.empty((n_tokens, n_rows), dtype=torch.float32, device=a.x.device)
        first = 0
        for w in weights:
            stop = first + w.n_rows
            part = None if bias is None else bias[first:stop]
            if n_tokens <= DECODE_TOKENS:
                linear_ops.linear(a.x, w, part, out[:, first:stop], self.device)
            else:
                matmul(self._orders.of(a, w.quant_type), w, part, out[:, first:stop], self.device)
            first = stop
        return out

    def gated_mlp(
        self, a: Activations, gate: Weight, up: Weight, down: Weight, unit: GatedUnit = SILU
    ) -> torch.Tensor:
        table, groups = self._dense.of(gate, up, unit), self._dense.groups(a.x.shape[0])
        h = torch.empty((a.x.shape[0], gate.n_rows), dtype=torch.float32, device=a.x.device)
        self._gate_up(a, table, groups, np.zeros(1, np.int32), h)
        return self.linear(Activations(h), down)

    def position(self, start: int) -> torch.Tensor:
        """int32 [1] on the device that holds `start`; always the same memory, so that a recorded launch reads the value
        of its replay.
        """
        if start != self._position_value:
            self._position.fill_(start)
            self._position_value = start
        return self._position

    def rope_write(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: RopeTable, start: int, cache: KVLayer
    ) -> None:
        stop, capacity = start + q.shape[0], cache.k.shape[1]
        if stop > rope.cos.shape[0] or (q.shape[0] if cache.ring else stop) > capacity:
            raise ValueError(f"positions up to {stop} in a KV cache of {capacity}, rope table of {rope.cos.shape[0]}")
        rope_ops.rope_write(q, k, v, rope, self.position(start), cache)

    def attention(
        self, q: torch.Tensor, cache: KVLayer, start: int, num_heads: int, scale: float, window: int = 0,
        sinks: torch.Tensor | None = None, length: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """`length`: cache positions that the launch covers where it is recorded for later positions, see
        `kernels.gpu.attention`; 0: those that it needs now.
        """
        n_tokens, (num_kv_heads, capacity, _) = q.shape[0], cache.k.shape
        n_needed = n_tokens + (max(window, 1) - 1 if cache.ring else start)
        if num_heads % num_kv_heads or q.shape[1] % num_heads or n_needed > capacity or (cache.ring and not window):
            raise ValueError(f"attention of q {tuple(q.shape)}, {num_heads} heads at {start}, over {cache.k.shape}")
        covered = max(length, start + n_tokens)
        return attention_ops.attention(
            q, cache, self.position(start), covered, num_heads, scale, window, sinks, self.device
        )

    def sigmoid_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return gates.sigmoid_gate(x, gate)

    def gated_norm(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.gated_norm(x, gate, weight, eps, self.device)

    def causal_conv(
        self, x: torch.Tensor, kernel: torch.Tensor, state: torch.Tensor, silu: bool
    ) -> torch.Tensor:
        return conv.causal_conv(x, kernel, state, silu)

    def delta_rule(
        self, qkv: torch.Tensor, beta: torch.Tensor, alpha: torch.Tensor, rule: DeltaRule, state: torch.Tensor
    ) -> torch.Tensor:
        return delta_rule.delta_rule(qkv, beta, alpha, rule, state, self.device)

    def route_on_device(
        self, router_logits: torch.Tensor, spec: RouterSpec, selection_bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`route` without waiting: both answers stay on the device; ids are -1 for a token with a NaN logit."""
        if spec.gating == "sparsemixer":
            return sparse_mixer.route(router_logits, spec, selection_bias)
        return router.route(router_logits, spec, selection_bias)

    def route(
        self, router_logits: torch.Tensor | np.ndarray, spec: RouterSpec,
        selection_bias: torch.Tensor | np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        router_logits = self._on_device(router_logits)
        selection_bias = None if selection_bias is None else self._on_device(selection_bias)
        if self._noted_route is not None and self._noted_route[0] is router_logits:
            answer = self._noted_route[1]
        else:
            answer = self.route_on_device(router_logits, spec, selection_bias)
        topk_ids, topk_weights = self._mailbox.fetch(answer)
        broken = np.flatnonzero(topk_ids[:, 0] < 0)
        if broken.size:
            raise NotNumbersError(f"router logits of token {broken[0]} are not numbers")
        return topk_ids, topk_weights

    def note_route(self, router_logits: torch.Tensor, answer: tuple[torch.Tensor, torch.Tensor]) -> None:
        """`route` of these logits has been launched: `answer` is what `route_on_device` gave, in memory that a replay
        fills anew.
        """
        self._noted_route = (router_logits, answer)

    def covering(self, length: int) -> CoveringBackend:
        """This backend with attention launches that serve `length` positions."""
        return CoveringBackend(self, length)

    def expert_gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: torch.Tensor
    ) -> None:
        if h.shape[1] != table.intermediate_size or a.x.shape[1] != table.hidden_size:
            raise _misfit(table, a.x, h)
        if which.size:
            self._gate_up(a, self._table(table), self._device_groups(groups), which, h)

    def _gate_up(
        self, a: Activations, made: DeviceTable, groups: DeviceGroups, which: np.ndarray, h: torch.Tensor
    ) -> None:
        if groups.n_tokens <= DECODE_TOKENS:
            experts_decode.gate_up(a.x, made, groups, self.upload(which), h, self.device)
            return
        x_of = {t: self._orders.of(a, t) for pair in made.gate_up_types for t in pair}
        experts_prefill.gate_up(x_of, made, groups, which, h, self.device, self.upload)

    def expert_down(
        self, h: torch.Tensor, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: torch.Tensor
    ) -> None:
        if h.shape[1] != table.intermediate_size or d.shape[1] != table.hidden_size:
            raise _misfit(table, h, d)
        if not which.size:
            return
        made, on_device = self._table(table), self._device_groups(groups)
        if on_device.n_tokens <= DECODE_TOKENS:
            experts_decode.down(h, made, on_device, self.upload(which), d, self.device)
            return
        rows = Activations(h)
        h_of = {t: self._orders.of(rows, t) for t in made.down_types}
        experts_prefill.down(h_of, made, on_device, which, d, self.device, self.upload)

    def expert_combine(
        self, d: torch.Tensor, groups: ExpertGroups, topk_weights: np.ndarray | torch.Tensor
    ) -> torch.Tensor:
        return experts_decode.combine(d, self._device_groups(groups), self._on_device(topk_weights))

    def expert_down_combine(
        self, h: torch.Tensor, table: ExpertTable, groups: ExpertGroups, topk_weights: np.ndarray | torch.Tensor
    ) -> torch.Tensor:
        """`expert_down` of all groups of one token and `expert_combine`, the same bits: one launch, or more where
        experts differ in their type of down.
        """
        made, on_device = self._table(table), self._device_groups(groups)
        weights = self._on_device(topk_weights)
        if on_device.n_tokens == 1 and len(made.down_types) == 1:
            return experts_decode.down_combine(h, made, on_device, weights, self.device)
        d = torch.empty((h.shape[0], table.hidden_size), dtype=torch.float32, device=h.device)
        self.expert_down(h, table, groups, np.arange(groups.expert_ids.shape[0], dtype=np.int32), d)
        return self.expert_combine(d, groups, weights)

    def experts(
        self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray
    ) -> torch.Tensor:
        groups = group_by_expert(topk_ids)
        h, _ = self.pair_buffers(topk_ids.size, table.intermediate_size, table.hidden_size)
        self.expert_gate_up(a, table, groups, np.arange(groups.expert_ids.shape[0], dtype=np.int32), h)
        return self.expert_down_combine(h, table, groups, topk_weights)

    def pair_buffers(
        self, n_pairs: int, intermediate_size: int, hidden_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Workspace (h [n_pairs, F], d [n_pairs, D]) that the next call with these widths hands out again; kept at
        its largest size.
        """
        key = (intermediate_size, hidden_size)
        found = self._pairs.get(key)
        if found is None or found[0].shape[0] < n_pairs:
            h, d = (torch.empty((n_pairs, w), dtype=torch.float32, device=self.torch_device) for w in key)
            found = self._pairs[key] = (h, d)
        return found[0][:n_pairs], found[1][:n_pairs]

    def forget(self, table: ExpertTable) -> None:
        """Drop what is kept for a slot table that will not be used again."""
        self._tables.pop(id(table), None)

    def _table(self, table: ExpertTable) -> DeviceTable:
        found = self._tables.get(id(table))
        if found is None:
            found = self._tables[id(table)] = device_table(table, self.upload)
        else:
            follow(found, self.upload)
        return found

    def _device_groups(self, groups: ExpertGroups) -> DeviceGroups:
        """The groups on the device, uploaded once for the ops of a layer call."""
        if self._groups is None or self._groups.host is not groups:
            self._groups = upload_groups(groups, self.upload)
        return self._groups

    def _on_device(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        return self.upload(array) if isinstance(array, np.ndarray) else array


def _misfit(table: ExpertTable, read: torch.Tensor, written: torch.Tensor) -> ValueError:
    sizes = f"{table.hidden_size} x {table.intermediate_size}"
    return ValueError(f"experts of {sizes} from {tuple(read.shape)} into {tuple(written.shape)}")

"""llama.cpp's flags that pearl does not have, and what to type instead: a table, read by `pearl_cli.foreign_flags`.

Flags that pearl has under the same name are not here, even where they are not on every command of pearl.
"""

from __future__ import annotations

from dataclasses import dataclass

TALK = ("chat", "complete")
TEXT = (*TALK, "eval", "trace")
SPEED = ("bench",)
RUN = (*TEXT, *SPEED)


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """`names`: its spellings, separated by spaces. `takes`: "" no value, "V" one, "V?" one that may be left out.

    `kept`: values ("" where none is taken) that ask for what pearl does anyway; `answer` says what that is, or what to
    do instead.
    """

    names: str
    takes: str
    answer: str
    kept: frozenset[str] = frozenset()
    commands: tuple[str, ...] = RUN


_ALWAYS = frozenset({""})
_PLACES = "experts move between GPU, RAM and disk as needed; --vram SIZE, --ram SIZE and --budget SIZE bound them"
_LOADS = "experts are read into slots and no file is mapped; --ram SIZE bounds them, --store ram holds them all"
_THREADS = "-t N counts for prompts too; -C HEX, -Cr LO-HI and --cpu-strict 1 choose the cores"
_ONE_GPU = "one GPU is used; --device auto|cpu|cuda"
_FITS = "--ram SIZE and --vram SIZE bound the run; pearl plan shows what fits"
_NO_DOWNLOAD = "nothing is downloaded; give -m a GGUF or a Hugging Face folder"
_FROM_FILE = "it is taken from the model's file"
_LOG = "replies and data go to stdout, all else to stderr: 2>FILE keeps it, 2>/dev/null leaves it out; -v says more"
_SAMPLERS = "the samplers are the penalties, --top-k, --top-p, --min-p and --temp"
_FREE_TEXT = "replies are not held to a grammar or a schema"
_TEMPLATE = "the chat template frames each turn; --chat-template TEXT or --chat-template-file FILE gives another"
_THINKING = """the chat template decides; e.g. --chat-template-kwargs '{"enable_thinking": false}'"""
_CONTEXT = "a full context ends the reply; -c N makes it larger"
_NO_ADAPTERS = "adapters are not supported; merge them into the checkpoint, then pearl convert"
_NO_DRAFT = "there are no draft models"
_KEEPS = "in pearl chat, /save FILE and /load FILE keep a conversation"
_BLOCKS = "attention always goes over the cache in blocks and never holds all scores"

FLAGS = (
    # where things are
    ForeignFlag("-ngl --gpu-layers --n-gpu-layers", "V", f"{_PLACES}; --device cpu leaves the GPU out"),
    ForeignFlag("-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ot --override-tensor", "V", _PLACES),
    ForeignFlag("-cmoe --cpu-moe --op-offload --no-op-offload --no-host", "", _PLACES, commands=TEXT),
    ForeignFlag("-nopo --no-op-offload --no-host", "V", _PLACES, commands=SPEED),
    ForeignFlag(
        "-kvo --kv-offload -nkvo --no-kv-offload", "", "the KV cache is where the model computes", commands=TEXT
    ),
    ForeignFlag("-nkvo --no-kv-offload", "V", "the KV cache is where the model computes", commands=SPEED),
    ForeignFlag("-dev", "V", "write --device auto|cpu|cuda"),
    ForeignFlag("-sm --split-mode -ts --tensor-split -mg --main-gpu --rpc", "V", _ONE_GPU),
    ForeignFlag("--list-devices", "", _ONE_GPU),
    ForeignFlag("-fit --fit -fitt --fit-target -fitc --fit-ctx", "V", _FITS),
    ForeignFlag("-lm --load-mode", "V", _LOADS, frozenset({"auto", "none", "dio"})),
    ForeignFlag("--no-mmap -dio --direct-io", "", _LOADS, _ALWAYS, TEXT),
    ForeignFlag("-mmp --mmap", "V", _LOADS, frozenset({"0"}), SPEED),
    ForeignFlag("--mmap --mlock", "", _LOADS, commands=TEXT),
    ForeignFlag("-lzm --lazy-mode", "V", _LOADS),
    ForeignFlag("-nr --repack --no-repack", "", "weights are computed with as the file has them", commands=TEXT),
    ForeignFlag("--repack", "V", "weights are computed with as the file has them", frozenset({"0"}), SPEED),
    ForeignFlag("--check-tensors", "", "pearl info --verify checks a model's files"),
    ForeignFlag(
        "-mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hft --hf-token", "V", _NO_DOWNLOAD
    ),
    ForeignFlag("--offline", "", _NO_DOWNLOAD, _ALWAYS),
    ForeignFlag("-cl --cache-list", "", _NO_DOWNLOAD),
    # how it computes
    ForeignFlag("-fa --flash-attn", "V?", _BLOCKS, frozenset({"on", "auto", "1"})),
    ForeignFlag("-tb --threads-batch --numa --prio --poll", "V", _THREADS),
    ForeignFlag(
        "-Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch", "V", _THREADS
    ),
    ForeignFlag("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale", "V", _FROM_FILE),
    ForeignFlag(
        "--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", "V", _FROM_FILE
    ),
    ForeignFlag("--override-kv", "V", f"{_FROM_FILE}, and no key can be overridden"),
    ForeignFlag("-gan --grp-attn-n -gaw --grp-attn-w", "V", "self-extending attention is not supported"),
    ForeignFlag("--swa-full", "", "a window's cache holds what the window needs"),
    ForeignFlag("-np --parallel -dt --defrag-thold", "V", "there is one sequence, and its cache has no holes"),
    ForeignFlag("--keep", "V", _CONTEXT),
    ForeignFlag("--context-shift", "", _CONTEXT, commands=TALK),
    ForeignFlag("--no-context-shift", "", _CONTEXT, _ALWAYS, TALK),
    ForeignFlag("--lora --lora-scaled", "V", _NO_ADAPTERS),
    ForeignFlag("--control-vector --control-vector-scaled --control-vector-layer-range", "V", _NO_ADAPTERS),
    ForeignFlag("-md --model-draft --draft --draft-max --draft-min -ngld -cd", "V", _NO_DRAFT),
    ForeignFlag(
        "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft", "V", _NO_DRAFT
    ),
    # sampling
    ForeignFlag("--samplers --sampler-seq --sampling-seq --top-nsigma --top-n-sigma", "V", _SAMPLERS, commands=TALK),
    ForeignFlag("--xtc-probability --xtc-threshold --typical --typical-p", "V", _SAMPLERS, commands=TALK),
    ForeignFlag("--dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n", "V", _SAMPLERS, commands=TALK),
    ForeignFlag("--dry-sequence-breaker --adaptive-target --adaptive-decay", "V", _SAMPLERS, commands=TALK),
    ForeignFlag(
        "--dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent", "V", _SAMPLERS, commands=TALK
    ),
    ForeignFlag("-l --logit-bias", "V", f"{_SAMPLERS}; --ignore-eos bars the end of text", commands=("complete",)),
    ForeignFlag("-l --logit-bias", "V", _SAMPLERS, commands=("chat",)),
    ForeignFlag("-bs --backend-sampling", "", _SAMPLERS, commands=TALK),
    ForeignFlag("--grammar --grammar-file -j --json-schema -jf --json-schema-file", "V", _FREE_TEXT, commands=TALK),
    # what is said
    ForeignFlag("--log-disable --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix", "", _LOG),
    ForeignFlag("--log-timestamps --no-log-timestamps --log-verbose --progress", "", _LOG),
    ForeignFlag("--log-file --log-colors -lv --verbosity --log-verbosity", "V", _LOG),
    ForeignFlag(
        "-oe --output-err", "V", "-o FORMAT goes to stdout, and what is told meanwhile to stderr", commands=SPEED
    ),
    ForeignFlag(
        "--verbose-prompt", "", "pearl tokenize --special, or complete --json, shows a prompt's ids", commands=TALK
    ),
    ForeignFlag("-ptc --print-token-count", "V", "pearl chat's /stats and timings, or complete --json, count tokens"),
    ForeignFlag("--perf --no-perf", "", "--show-timings or --no-show-timings", commands=("chat",)),
    ForeignFlag("--perf --no-perf", "", "--json holds the timings", commands=("complete",)),
    ForeignFlag("--simple-io", "", "output is plain wherever it is no terminal", _ALWAYS, TALK),
    ForeignFlag("--no-display-prompt", "", "the prompt is not repeated", _ALWAYS, TALK),
    ForeignFlag("--display-prompt", "", "the prompt is not repeated", commands=TALK),
    ForeignFlag(
        "-sp", "", "special tokens are not printed; complete --special reads them in the prompt", commands=TALK
    ),
    ForeignFlag(
        "--special", "", "special tokens are not printed; those of the template are always read", commands=("chat",)
    ),
    ForeignFlag("-co --color", "V?", "pearl complete prints no colours", frozenset({"off", "auto"}), ("complete",)),
    ForeignFlag("--version", "", "write pearl --version"),
    ForeignFlag("--completion-bash", "", "pearl writes no shell completion"),
    # chat or not
    ForeignFlag("-cnv --conversation", "", "pearl chat is a conversation", _ALWAYS, ("chat",)),
    ForeignFlag(
        "-no-cnv --no-conversation", "", "pearl complete continues a text without a template", commands=("chat",)
    ),
    ForeignFlag("-no-cnv --no-conversation", "", "pearl complete uses no template", _ALWAYS, ("complete",)),
    ForeignFlag(
        "-cnv --conversation -i --interactive -if --interactive-first", "", "that is pearl chat", commands=("complete",)
    ),
    ForeignFlag("-st --single-turn", "", "pearl complete always ends after one text", _ALWAYS, ("complete",)),
    ForeignFlag("-i --interactive -if --interactive-first", "", "pearl chat goes on until /exit", _ALWAYS, ("chat",)),
    ForeignFlag(
        "-sys --system-prompt -sysf --system-prompt-file",
        "V",
        "a system text belongs to pearl chat",
        commands=("complete",),
    ),
    ForeignFlag(
        "--chat-template --chat-template-file", "V", "a chat template belongs to pearl chat", commands=("complete",)
    ),
    ForeignFlag(
        "-mli --multiline-input",
        "",
        "a backslash at a line's end continues it; /read FILE asks with a file",
        commands=TALK,
    ),
    ForeignFlag("--in-prefix --in-suffix", "V", _TEMPLATE, commands=("chat",)),
    ForeignFlag("--in-prefix --in-suffix", "V", "write it into -p TEXT", commands=("complete",)),
    ForeignFlag("--in-prefix-bos", "", "the vocabulary says whether a text begins with BOS", commands=TALK),
    ForeignFlag("--jinja", "", "chat templates are always rendered by jinja", _ALWAYS, TALK),
    ForeignFlag("--no-jinja", "", "chat templates are always rendered by jinja", commands=TALK),
    ForeignFlag("--skip-chat-parsing --no-skip-chat-parsing", "", _TEMPLATE, commands=TALK),
    ForeignFlag("--reasoning-format -rea --reasoning --reasoning-effort", "V", _THINKING, commands=TALK),
    ForeignFlag("--reasoning-budget --reasoning-budget-message", "V", _THINKING, commands=TALK),
    ForeignFlag("--reasoning-preserve --no-reasoning-preserve", "", _THINKING, commands=TALK),
    ForeignFlag("--ignore-eos", "", "pearl complete --ignore-eos goes on past the end of a text", commands=("chat",)),
    ForeignFlag("--prompt-cache", "V", _KEEPS, commands=TALK),
    ForeignFlag("--prompt-cache-all --prompt-cache-ro", "", _KEEPS, commands=TALK),
    ForeignFlag("-bf --binary-file", "V", "write -f FILE, a text in UTF-8", commands=TALK),
    # a benchmark's
    ForeignFlag("--no-warmup", "", "there is no warm-up run", _ALWAYS, TALK),
    ForeignFlag("--warmup", "", "there is no warm-up run", commands=TALK),
    ForeignFlag(
        "--no-warmup",
        "",
        "compiling and the first token are never timed, and a cold start has its own record",
        commands=SPEED,
    ),
    ForeignFlag(
        "-pg", "V", "give -p and -n; each is a record of its own, and -d N puts context before it", commands=SPEED
    ),
    ForeignFlag("--delay", "V", "tests follow at once", frozenset({"0"}), SPEED),
    ForeignFlag("-embd --embeddings", "V", "text generation is measured, no embeddings", frozenset({"0"}), SPEED),
)

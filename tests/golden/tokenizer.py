#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: small tokenizers of every kind and the ids that the reference libraries give.

Needs `tokenizers`, `tiktoken` and `sentencepiece` in a virtual environment; `make test` needs only the output.
For each kind: the tokenizer in its native format, and vectors.json, a list of [text, parse_special, ids].
"""
import base64, io, json, os, random, sys
import sentencepiece, tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
PER_KIND = 260

SEED = """A little river ran through the valley, and the children who lived near it knew every stone. They'd say the river
was older than the hills; she'll outlive us all, they said. It's true that we've never seen it dry, and I'm not the one
who'd doubt it. In 1998 the water rose 37 centimetres in 12 hours, and 1,234,567 litres went past the mill.
def walk(tree, depth=0):\n    for node in tree:\n        print("  " * depth + node.name)\n        walk(node.children, depth + 1)\n
Der Fluß floß über die Steine; früh am Morgen hörte man ihn flüstern. Où êtes-vous allés? Ça va bien, merci.
Dòng sông chảy qua thung lũng, nước trong và mát. Người già kể chuyện cũ. Река текла через долину, и дети знали каждый камень.
Ο ποταμός κυλούσε μέσα στην κοιλάδα. 川は谷を流れ、子供たちは石を知っていた。河水流过山谷。 강은 골짜기를 흘렀다. النهر يجري في الوادي ٢٠٢٤.
The end of the day, the end of the road, the beginning of the night; and then there were the stars and the moonlight.
"""

FRAGMENTS = [
    " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2028", "\u2029", "\u3000", "\u200b", "\u200d", "\u180e",
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'\u017f", "'", "''", "\u2019s", "\u201cquoted\u201d",
    "the", "The", "river", "children", "valley", "stone", "and", "over", "THE", "iPhone", "can't", "WON'T", "a", "I",
    "1", "12", "123", "1234", "1234567", "3.14", "1,000", "\u0663\u0664", "\u00b2", "\u2167", "\u00bd", "\U0001d7d9",
    "é", "e\u0301", "ñ", "n\u0303", "Å", "\u212b", "Đ", "Tiếng Việt", "Tie\u0302\u0301ng Vie\u0323\u0302t", "Nguyễn", "ß", "ſ", "İ", "ı",
    "川は谷", "子供たち", "河水流过山谷", "강은", "\u1100\u1161\u11a8", "Река", "ποταμός", "النهر", "हिन्दी", "ไทย",
    "😀", "👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "🇫🇷", "\U0001f600" * 3,
    ".", ",", "...", "!?", "--", "/*", "*/", "==", "()", "{", "}", "_", "__init__", "#", "@user", "https://a.b/c?d=e",
    "\u2581", "\u2581the", "\ufeff", "\ufffd", "\x01", "\x7f", "\x85", "<0x41>",
]
SPECIAL_FRAGMENTS = ["<|endoftext|>", "<|start|>", "<s>", "</s>", "<unk>", "<sep>", " <sep>", "<mask> ", " <mask>  ", "wholeword", "xwholeword", "<user>", "< |endoftext|>"]


def strings(kind):
    rng = random.Random(kind)
    words = SEED.split()
    made = ["", " ", "  ", "\n", "a", " a", "a ", "a  ", "hello world", "1234567", "\u2029", "trailing   ", "   leading",
            "a" * 70, "ab" * 60, " " * 40, "\n" * 20, "The river's older than the hills", "\u00a0\u00a0x", "x\u3000\u3000", "=" * 50]
    while len(made) < PER_KIND:
        shape = rng.random()
        if shape < 0.25:
            at = rng.randrange(len(SEED) - 120)
            text = SEED[at : at + rng.randrange(1, 110)]
        elif shape < 0.75:
            pool = FRAGMENTS + SPECIAL_FRAGMENTS if shape < 0.5 else FRAGMENTS
            text = "".join(rng.choice(pool) for _ in range(rng.randrange(1, 9)))
        elif shape < 0.9:
            text = "".join(rng.choice([" ", "", "\n", "  "]) + rng.choice(words + FRAGMENTS) for _ in range(rng.randrange(1, 9)))
        else:
            ranges = [(0x20, 0x250), (0x370, 0x800), (0x900, 0x1000), (0x1E00, 0x2100), (0x3000, 0x3100), (0x4E00, 0x4F00), (0x1F300, 0x1F700), (0x10000, 0x10100)]
            text = "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 10)))
        if text not in made:
            made.append(text)
    return made


def write(kind, name, data):
    os.makedirs(os.path.join(OUT, kind), exist_ok=True)
    with open(os.path.join(OUT, kind, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def write_vectors(kind, encode):
    rows = []
    for i, text in enumerate(strings(kind)):
        special = i % 2
        rows.append(json.dumps([text, special, encode(text, special)], ensure_ascii=True))
    write(kind, "vectors.json", "[\n" + ",\n".join(rows) + "\n]\n")


def hf(kind, tok, added=(), string_merges=False, model=None, vocab_size=620, alphabet=True, specials=(), change=None):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=list(specials),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else [], min_frequency=1)
    tok.train_from_iterator(SEED.split("\n"), trainer)
    tok.add_tokens([t for t in added if not t.special])
    tok.add_special_tokens([t for t in added if t.special])
    tree = json.loads(tok.to_str())
    tree["model"].update(model or {})
    if change:
        change(tree)
    if string_merges:
        tree["model"]["merges"] = [" ".join(m) for m in tree["model"]["merges"]]
    write(kind, "tokenizer.json", json.dumps(tree, ensure_ascii=False, separators=(",", ":")))
    loaded = Tokenizer.from_file(os.path.join(OUT, kind, "tokenizer.json"))

    def encode(text, special):
        loaded.encode_special_tokens = not special
        return loaded.encode(text, add_special_tokens=False).ids

    write_vectors(kind, encode)


FLAGGED = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("<|start|>", special=True, normalized=True),
    AddedToken("<sep>", special=False, lstrip=True, normalized=False),
    AddedToken("<mask>", special=False, rstrip=True, normalized=True),
    AddedToken("wholeword", special=False, single_word=True, normalized=True),
    AddedToken("<user>", special=False, lstrip=True, rstrip=True, normalized=False),
]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split_then_bytes(*patterns):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(pre, normalizer=None):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def make_byte_level():
    hf("gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), FLAGGED, string_merges=True)
    hf("gpt2_prefix", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), FLAGGED[:2])
    tok = byte_level(split_then_bytes(LLAMA3))
    bos = AddedToken("<|begin|>", special=True, normalized=False)
    tok.add_special_tokens([bos])
    hf("llama3", tok, FLAGGED, model={"ignore_merges": True}, specials=["<|begin|>"], change=lambda tree: tree.update(
        post_processor={"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]}}}]}))
    hf("qwen2", byte_level(split_then_bytes(QWEN2), normalizers.NFC()), FLAGGED)
    smol = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    hf("smollm2", byte_level(smol), FLAGGED, string_merges=True)
    # No scanner knows these: several patterns in a row, and one that takes capitals apart.
    hf("patterns", byte_level(split_then_bytes(r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u30ff]+",
       r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")), FLAGGED)
    camel = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    hf("capitals", byte_level(split_then_bytes(camel)), FLAGGED[:1])


def make_characters():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")  # only while training
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]

    def finish(tree):
        tree["pre_tokenizer"] = None
        tree["added_tokens"] = [t for t in tree["added_tokens"] if not t["content"].startswith("<0x")]

    hf("llama2", tok, (), alphabet=False, vocab_size=620, specials=names, change=finish)
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=True)
    tok.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="first", split=True)
    hf("metaspace", tok, FLAGGED[2:], alphabet=False, vocab_size=400, specials=["<unk>", "<s>", "</s>"])
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(" ", "removed")])
    hf("lowercase", tok, [FLAGGED[0], FLAGGED[3]], alphabet=False, vocab_size=400, specials=["<unk>"])


def make_sentencepiece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SEED.split("\n")), model_writer=model, vocab_size=620, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.995,
        split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<user>"], minloglevel=2, num_threads=1)
    write("sentencepiece", "tokenizer.model", model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = [json.dumps([text, 0, processor.encode(text)]) for text in strings("sentencepiece")]
    write("sentencepiece", "vectors.json", "[\n" + ",\n".join(rows) + "\n]\n")


def make_tiktoken():
    tree = json.load(open(os.path.join(OUT, "llama3", "tokenizer.json")))
    to_byte = {c: b for b, c in zip(sorted(range(256), key=lambda b: (not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174), b)),
               [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)) + list(range(256, 324))])}
    keys = [k for k, _ in sorted(tree["model"]["vocab"].items(), key=lambda kv: kv[1]) if all(c in to_byte for c in k) and "<|" not in k]
    ranks = {bytes(to_byte[c] for c in k): i for i, k in enumerate(keys)}
    lines = [base64.b64encode(t) + b" %d" % r for t, r in ranks.items()]
    write("tiktoken", "small.tiktoken", b"\n".join(lines) + b"\n")
    encoding = tiktoken.Encoding("small", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    write_vectors("tiktoken", lambda text, special: encoding.encode_ordinary(text))


def make_gpt2_files():
    tree = json.load(open(os.path.join(OUT, "gpt2", "tokenizer.json")))
    vocab = tree["model"]["vocab"]
    vocab["<|endoftext|>"] = len(vocab)
    write("gpt2_files", "vocab.json", json.dumps(vocab, ensure_ascii=False, separators=(",", ":")))
    write("gpt2_files", "merges.txt", "#version: 0.2\n" + "\n".join(tree["model"]["merges"]) + "\n")
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.model = models.BPE.from_file(os.path.join(OUT, "gpt2_files", "vocab.json"), os.path.join(OUT, "gpt2_files", "merges.txt"))
    tok.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])

    def encode(text, special):
        tok.encode_special_tokens = not special
        return tok.encode(text, add_special_tokens=False).ids

    write_vectors("gpt2_files", encode)


make_byte_level()
make_characters()
make_sentencepiece()
make_tiktoken()
make_gpt2_files()

#!/usr/bin/env python3
"""Rename items of the workspace as docs/renames.md says.

The map is a set of tables with the columns old, new, kind, where, why. `where` is a file, given as
`CRATE/FILE` for `crates/CRATE/src/FILE`, or as a path from the root; for `method` and `word` it is
a list of glob patterns of such files. Kinds:

  type, fn, const  an item of a module. Each use is resolved through `use` and `mod`, so that other
                   items of the same name keep theirs.
  module           a module: the file or folder moves as well.
  variant, assoc   `Type::old`, a variant or an associated function of a type of that file.
  method           `.old(..)`, `fn old` and `Type::old` in the files that match.
  word             every identifier `old` in the files that match, `{old}` in strings too.

Strings are otherwise left alone. In comments, names between backticks are renamed. A second run
changes nothing. `rename.py --check` only says what would change and fails if anything would.
"""
import collections
import fnmatch
import os
import re
import subprocess
import sys

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>\b(?:b|c)?r(?P<h>\#*)"(?:.|\n)*?"(?P=h)|\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\])')
  | (?P<life>'[A-Za-z_]\w*)
  | (?P<ident>(?:r\#)?[A-Za-z_]\w*)
  | (?P<num>\d\w*(?:\.\d\w*)?)
  | (?P<path>::)
  | (?P<punct>\S)""",
    re.X | re.S,
)
CODE = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
SPAN = re.compile(r"`([^`\n]+)`")
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ>"
Entry = collections.namedtuple("Entry", "old new kind where")


def expand(where):
    """A file of the map as a path from the root."""
    if not where.startswith("lab/plugin/") and os.path.exists("crates/" + where.split("/")[0]
        + "/Cargo.toml"):
        crate, rest = where.split("/", 1)
        top = "" if rest.split("/")[0] in ("tests", "examples", "benches") else "src/"
        return f"crates/{crate}/{top}{rest}"
    return where


def read_map(path):
    entries = []
    for line in open(path, encoding="utf-8"):
        cells = [c.strip().strip("`") for c in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) >= 4 and cells[0] not in ("old",
            "") and "-" not in cells[0]:
            where = [expand(w.strip().strip("`")) for w in cells[3].split(",")]
            entries.append(Entry(cells[0], cells[1], cells[2], where))
    return entries


class Module:
    """A module: its items, its imports, and the modules in it."""

    def __init__(self, name, parent, file, crate):
        self.name, self.parent, self.file, self.crate = name, parent, file, crate
        self.items, self.children, self.uses, self.globs = {}, {}, {}, []
        self.root = parent.root if parent else self


class Workspace:
    def __init__(self, entries):
        self.entries = entries
        self.by_old = collections.defaultdict(list)
        for e in entries:
            self.by_old[e.old].append(e)
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True,
            text=True)
        listed = [f for f in out.stdout.split("\n") if f and os.path.exists(f)]
        self.text, self.tokens, self.scopes, self.crates, self.owners = {}, {}, {}, {}, {}
        files = sorted(f for f in listed if f.endswith(".rs"))
        for f in files:
            self.text[f] = open(f, encoding="utf-8").read()
            self.tokens[f] = [m for m in TOKEN.finditer(self.text[f])]
        for toml in sorted(f for f in listed if os.path.basename(f) == "Cargo.toml"):
            self.load_package(toml, files)

    def load_package(self, toml, files):
        text = open(toml, encoding="utf-8").read()
        package = re.search(r'^\[package\][^\[]*?^name\s*=\s*"([^"]+)"', text, re.M | re.S)
        if not package:
            return
        lib = re.search(r'^\[lib\][^\[]*?^name\s*=\s*"([^"]+)"', text, re.M | re.S)
        name = (lib or package).group(1).replace("-", "_")
        base = os.path.dirname(toml)
        mine = [f for f in files if f.startswith(base + "/")]
        first = [f"{base}/src/lib.rs"]
        for f in first + sorted(mine,
            key=lambda f: (f.count("/") + (f.endswith("main.rs") * -1), f)):
            if f in self.text and f not in self.scopes:
                root = Module(name, None, f, name)
                if f == first[0]:
                    self.crates[name] = root
                self.load_file(f, root, os.path.dirname(f))

    def load_file(self, f, module, folder):
        """Reads items, imports and modules of a file; notes the module each token lies in."""
        toks = [t for t in self.tokens[f] if t.lastgroup != "comment"]
        kind = lambda i: toks[i].lastgroup if i < len(toks) else None
        word = lambda i: toks[i].group() if 0 <= i < len(toks) else ""
        scope, stack, pending, i, path_attr, parens = {}, [], None, 0, None, 0
        current = module
        self.scopes[f] = scope
        while i < len(toks):
            w = word(i)
            scope[toks[i].start()] = current
            level = not stack or stack[-1][0] == "mod"
            if w == "#" and word(i + 1) == "[" and word(i + 2) == "path" and kind(i
                + 4) == "string":
                path_attr = word(i + 4)[1:-1]
            elif w == "mod" and kind(i + 1) == "ident" and word(i + 2) == ";":
                self.load_child(f, current, word(i + 1), folder, stack, path_attr)
                path_attr = None
            elif w == "mod" and kind(i + 1) == "ident" and word(i + 2) == "{":
                pending = ("mod", word(i + 1))
            elif w == "use" and kind(i + 1) in ("ident", "path", "punct") and word(i + 1) != "<":
                i = self.load_use(toks, i + 1, current, scope, [])
                continue
            elif w in ("struct", "enum", "trait", "type", "union", "fn", "const", "static",
                "macro_rules"):
                at = i + 1
                if w == "fn" and stack and stack[-1][0] in ("impl", "trait"):
                    self.owners[f, toks[at].start()] = (stack[-1][1], current)
                if kind(at) == "ident" and word(at) not in ("fn", "unsafe", "extern", "mut"):
                    if level:
                        current.items.setdefault(word(at), (w, set()))
                    if w in ("enum", "fn", "trait"):
                        pending = (w, word(at))
            elif w == "impl" and not (pending and pending[0] == "fn"):
                pending = ("impl", implemented(toks, i))
            elif w == "Self":
                owner = [s[1] for s in stack if s[0] in ("impl", "trait")]
                if owner:
                    self.owners[f, toks[i].start()] = (owner[-1], current)
            elif w == ";" and pending and pending[0] != "enum":
                pending = None
            elif w == "{":
                stack.append((*(pending or ("block", "")), current, parens))
                if pending and pending[0] == "mod":
                    child = Module(pending[1], current, f, module.crate)
                    current.children[pending[1]] = child
                    current = child
                pending = None
            elif w == "}":
                if stack:
                    current = stack.pop()[2]
            elif w in ("(", ")"):
                parens += 1 if w == "(" else -1
            elif (kind(i) == "ident" and stack and stack[-1][0] == "enum"
                  and word(i - 1) in "{,]" and parens == stack[-1][3]):
                item = current.items.get(stack[-1][1])
                if item:
                    item[1].add(w)
                scope[toks[i].start()] = ("variant", stack[-1][1], current)
            i += 1

    def load_child(self, f, current, name, folder, stack, path_attr):
        inner = "/".join(s[1] for s in stack if s[0] == "mod")
        stem = os.path.basename(f)[:-3]
        here = folder if stem in ("mod", "lib",
            "main") or current.root.file == f else f"{folder}/{stem}"
        here = f"{here}/{inner}" if inner else here
        options = [f"{folder}/{path_attr}"] if path_attr else [f"{here}/{name}.rs",
            f"{here}/{name}/mod.rs"]
        for option in map(os.path.normpath, options):
            if option in self.text:
                child = Module(name, current, option, current.crate)
                current.children[name] = child
                scope = self.scopes.get(option)
                self.load_file(option, child, os.path.dirname(option))
                self.scopes[option] = scope or self.scopes[option]

    def load_use(self, toks, i, current, scope, prefix):
        """One tree of a `use`; ends behind it."""
        segs = list(prefix)
        while i < len(toks):
            t, w = toks[i], toks[i].group()
            scope[t.start()] = ("use", list(segs), current)
            if w == "{":
                i += 1
                while toks[i].group() != "}":
                    i = self.load_use(toks, i, current, scope, segs)
                    if toks[i].group() == ",":
                        i += 1
                return i + 1
            if w == "*":
                current.globs.append(segs)
                return i + 1
            if w == "as":
                current.uses[toks[i + 1].group()] = segs
                scope[toks[i + 1].start()] = ("alias",)
                return i + 2
            if w in (",", "}", ";"):
                if segs and segs != prefix or segs and segs[-1] == "self":
                    if segs[-1] == "self":
                        segs = segs[:-1]
                    if segs:
                        current.uses.setdefault(segs[-1], segs)
                return i
            if t.lastgroup == "ident":
                segs = segs + [w]
            elif t.lastgroup == "path" and not segs:
                segs = ["::"]
            i += 1
        return i

    def lookup(self, module, name, seen=frozenset()):
        """What `name` is in a module: ('item', module, name), ('mod', module) or None."""
        key = (id(module), name)
        if key in seen:
            return None
        seen = seen | {key}
        found = self.lookup_exact(module, name, seen)
        if found:
            return found
        for e in self.by_old.get(name, []):
            if e.kind in ("type", "fn", "const", "module") and e.new != name:
                found = self.lookup_exact(module, e.new, seen)
                if found and self.entry_of(found, e.new) is e:
                    return found
        return None

    def lookup_exact(self, module, name, seen):
        if name in module.children:
            return ("mod", module.children[name])
        if name in module.items:
            return ("item", module, name)
        if name in module.uses:
            return self.resolve(module, module.uses[name], seen)
        for glob in module.globs:
            target = self.resolve(module, glob, seen)
            if target and target[0] == "mod":
                found = self.lookup(target[1], name, seen)
                if found:
                    return found
            elif target and target[0] == "item" and name in target[1].items[target[2]][1]:
                return ("variant", target[1], target[2], name)
        return None

    def resolve(self, module, segs, seen=frozenset()):
        at, first = None, True
        for k, seg in enumerate(segs):
            if seg == "::":
                continue
            if first:
                first = False
                if seg in ("crate", "$crate"):
                    at = ("mod", module.root)
                elif seg == "self":
                    at = ("mod", module)
                elif seg == "super":
                    at = ("mod", module.parent or module)
                else:
                    at = None
                    if segs[0] != "::" and not (seg in self.crates and len(segs) > 1):
                        at = self.lookup(module, seg, seen)
                    if at is None and seg in self.crates:
                        at = ("mod", self.crates[seg])
            elif at and at[0] == "mod":
                if seg == "super":
                    at = ("mod", at[1].parent or at[1])
                elif seg != "self":
                    at = self.lookup(at[1], seg, seen)
            elif at and at[0] == "item":
                at = ("member", at[1], at[2], seg) if k == len(segs) - 1 else None
            if at is None:
                return None
        return at

    def entry_of(self, target, name):
        """The entry of the map that a resolved name falls under."""
        if not target:
            return None
        if target[0] == "mod":
            module = target[1]
            for e in self.entries:
                if e.kind == "module" and name in (e.old, e.new):
                    if module.file in (e.where[0], moved(e)) and module.name in (e.old, e.new):
                        return e
        elif target[0] == "item":
            where = self.now(target[1].file)
            for e in self.entries:
                if e.kind in ("type", "fn", "const") and name in (e.old, e.new):
                    if target[2] in (e.old, e.new) and self.now(e.where[0]) == where:
                        return e
        elif target[0] in ("member", "variant"):
            where = self.now(target[1].file)
            for e in self.entries:
                if e.kind in ("variant", "assoc") and self.now(e.where[0]) == where:
                    owner, member = e.old.split("::")
                    names = {self.type_now(where, n) for n in (owner, target[2])}
                    if member == target[3] and len(names) == 1:
                        return e
        return None

    def type_now(self, where, name):
        """A type's name after the renames of its file."""
        for e in self.by_old.get(name, []):
            if e.kind == "type" and self.now(e.where[0]) == where:
                return e.new
        return name

    def now(self, path):
        """A path after the moves of the map."""
        for e in self.entries:
            if e.kind == "module":
                old, new = e.where[0], moved(e)
                if path == old:
                    path = new
                elif old.endswith("/mod.rs") and path.startswith(old[:-6]):
                    path = new[:-6] + path[len(old) - 6:]
                elif old.endswith(".rs") and path.startswith(old[:-3] + "/"):
                    path = new[:-3] + path[len(old) - 3:]
        return path

    def rewrite(self, f):
        """A file's text after the renames."""
        text, scope, edits = self.text[f], self.scopes.get(f, {}), []
        toks = [t for t in self.tokens[f] if t.lastgroup != "comment"]
        words = [e for e in self.entries if e.kind == "word" and self.in_where(f, e)]
        methods = [e for e in self.entries if e.kind == "method" and self.in_where(f, e)]
        everything = {e.old: e.new for e in words}
        called = {e.old: e.new for e in methods}
        olds = {o.split("::")[-1] for o in self.by_old}
        file_module = None
        for i, t in enumerate(toks):
            w = t.group()
            at = scope.get(t.start())
            if file_module is None and isinstance(at, Module):
                file_module = at
            if t.lastgroup == "string" and everything:
                new = re.sub(r"\{(\w+)(?=[:}])", lambda m: "{" + everything.get(m[1], m[1]), w)
                if new != w:
                    edits.append((t.start(), t.end(), new))
            if t.lastgroup != "ident" or w not in olds:
                continue
            before = toks[i - 1].group() if i else ""
            if before == "." and i > 1 and toks[i - 2].group() == ".":
                before = ".."
            after = toks[i + 1].group() if i + 1 < len(toks) else ""
            new = None
            owner = toks[i - 2].group() if i > 1 else ""
            if w == "windows" and before == "." and after == "(":
                continue  # of slices
            if w in called and (before == "fn" or before == "." and after in ("(", "::")
                                or before == "::" and owner[0] in UPPER):
                new = called[w]
            new = new or self.renamed(toks, i, w, before, after, at)
            new = new or self.associated(f, toks, i, w, before) or everything.get(w)
            if new and new != w:
                edits.append((t.start(), t.end(), new))
        for t in self.tokens[f]:
            if t.lastgroup == "comment" and "`" in t.group():
                module = self.module_at(f, t.start(), scope) or file_module
                new = SPAN.sub(lambda m: "`" + self.in_comment(m[1], module, everything) + "`",
                    t.group())
                if new != t.group():
                    edits.append((t.start(), t.end(), new))
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def in_where(self, f, e):
        return any(fnmatch.fnmatch(f, w) or fnmatch.fnmatch(f, self.now(w)) for w in e.where)

    def module_at(self, f, start, scope):
        later = [p for p in sorted(scope) if p > start][:1]
        at = scope[later[0]] if later else None
        return at if isinstance(at, Module) else at[-1] if at and isinstance(at[-1],
            Module) else None

    def renamed(self, toks, i, w, before, after, at):
        if isinstance(at, tuple):
            if at[0] == "use":
                return self.new_name(self.resolve(at[2], at[1] + [w]), w)
            if at[0] == "variant":
                return self.new_name(("variant", at[2], at[1], w), w)
            return None
        if at is None or before == "." or before == "'":
            return None
        if before == "mod":
            child = at.children.get(w)
            return self.new_name(("mod", child), w) if child else None
        segs, k = [w], i
        while k >= 2 and toks[k - 1].group() == "::" and toks[k - 2].lastgroup == "ident":
            segs.insert(0, toks[k - 2].group())
            k -= 2
        if k >= 1 and toks[k - 1].group() == "::":
            return None
        if k >= 1 and toks[k - 1].group() == "$" and segs[0] == "crate":
            pass
        pointer = before == "const" and i > 1 and toks[i - 2].group() == "*"
        if not pointer and before in ("fn", "struct", "enum", "trait", "type", "union", "const",
                                      "static"):
            if w in at.items and at.items[w][0] == before:
                return self.new_name(("item", at, w), w)
            return None
        if len(segs) == 1 and w[0].islower() and after not in ("(", "::", "!"):
            return None
        return self.new_name(self.resolve(at, segs), w)

    def associated(self, f, toks, i, w, before):
        """The new name of an associated function where it is defined, or named by `Self`."""
        owner = None
        if before == "fn":
            owner = self.owners.get((f, toks[i].start()))
        elif before == "::" and i > 1 and toks[i - 2].group() == "Self":
            owner = self.owners.get((f, toks[i - 2].start()))
        if not owner:
            return None
        target = self.lookup(owner[1], owner[0])
        if not target or target[0] != "item":
            return None
        return self.new_name(("member", target[1], target[2], w), w)

    def new_name(self, target, w):
        if target and target[0] in ("member", "variant"):
            e = self.entry_of(target, w)
            return e.new.split("::")[-1] if e else None
        e = self.entry_of(target, w)
        return e.new if e and e.old == w else None

    def in_comment(self, code, module, everything):
        def path(m):
            segs = m[0].split("::")
            out = list(segs)
            for k in range(len(segs)):
                if segs[k] in everything:
                    out[k] = everything[segs[k]]
                elif module and segs[k] in self.by_old:
                    out[k] = self.new_name(self.resolve(module, segs[: k + 1]), segs[k]) or segs[k]
            return "::".join(out)

        return CODE.sub(path, code)


def implemented(toks, i):
    """The type that an `impl` is for."""
    depth, name = 0, ""
    for t in toks[i + 1:]:
        w = t.group()
        if w == "{" or w == "where":
            break
        depth += {"<": 1, ">": -1}.get(w, 0)
        if w == "for" and depth == 0:
            name = ""
        elif t.lastgroup == "ident" and depth == 0:
            name = w
    return name


def moved(e):
    """Where a renamed module's file lies afterwards."""
    path = e.where[0]
    if path.endswith("/mod.rs"):
        return os.path.dirname(os.path.dirname(path)) + f"/{e.new}/mod.rs"
    return os.path.dirname(path) + f"/{e.new}.rs"


def move_files(entries):
    for e in entries:
        if e.kind == "module":
            pairs = [(e.where[0], moved(e))]
            if e.where[0].endswith("/mod.rs"):
                pairs = [(os.path.dirname(a), os.path.dirname(b)) for a, b in pairs]
            else:
                pairs.append((e.where[0][:-3], moved(e)[:-3]))
            for old, new in pairs:
                if os.path.exists(old) and not os.path.exists(new):
                    subprocess.run(["git", "mv", old, new], check=True)


def main():
    os.chdir(subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True,
                            text=True, check=True).stdout.strip())
    entries = read_map("docs/renames.md")
    workspace = Workspace(entries)
    changed = []
    for f in workspace.text:
        new = workspace.rewrite(f)
        if new != workspace.text[f]:
            changed.append(f)
            if "--check" not in sys.argv:
                open(f, "w", encoding="utf-8").write(new)
    if "--check" in sys.argv:
        print("\n".join(changed))
        sys.exit(1 if changed else 0)
    move_files(entries)
    print(f"{len(changed)} files changed")


if __name__ == "__main__":
    main()

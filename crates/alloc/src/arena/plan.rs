//! Plan files: which allocations of an unmodified program go to which arena. Pure; what is read is
//! not trusted.
//!
//! ```text
//! # Lines; the first rule that matches an allocation decides. Without one: the default.
//! arena fast  only 1 limit 8G huge
//! arena bulk  spill 1,0
//! size 1M.. bulk                    # requests of at least 1 MiB
//! size 64K..1M fast                 # and below 1 MiB
//! thread 3 fast                     # the fourth thread that allocates; `main` is 0
//! thread solver* fast               # threads by name; a star at the end stands for anything
//! site libfoo.so.1+0x4f21 fast      # by the address that a call of malloc returns to, in its module
//! shm /psm3* fast                   # shared memory that the program creates by shm_open, by name; not on a spill order
//! default fast                      # the rest; without this line: ordinary memory
//! ```

use super::error::ArenaError;
use super::place::Devices;
use terrace_types::{Bytes, NodeId};

/// Bytes of a plan at most.
pub const PLAN_LIMIT: usize = 1 << 20;
/// Arenas a plan may name.
pub const ARENAS_LIMIT: usize = 256;
/// Rules a plan may have.
pub const RULES_LIMIT: usize = 4096;
const WORD_LIMIT: usize = 255;

/// An arena of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedArena {
    /// Its name in the plan.
    pub name: String,
    /// Where its pages come from.
    pub devices: Devices,
    /// What it may hold; beyond that, allocations go to ordinary memory.
    pub limit: Option<Bytes>,
    /// Huge pages.
    pub huge_pages: bool,
}

/// What an allocation must be for a rule to match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllocationCondition {
    /// Bytes asked for: at least the first, below the second.
    Size(u64, u64),
    /// The how-manieth thread of the process that allocates; 0: the first.
    ThreadNumber(u64),
    /// The thread's name, as the kernel has it (15 bytes).
    ThreadName {
        /// All of the name, or how it begins.
        name: String,
        /// Anything may follow.
        open: bool,
    },
    /// The address that the call returns to.
    Site {
        /// File name of the module, without folders.
        module: String,
        /// Offset from where the module is loaded.
        offset: u64,
    },
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaRule {
    /// What it is about.
    pub when: AllocationCondition,
    /// Index into [`ArenaPlan::arenas`].
    pub arena: usize,
}

/// Shared memory that the program makes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    /// Its name as in `shm_open(3)`, without the slash; all of it, or how it begins.
    pub name: String,
    /// Anything may follow.
    pub open: bool,
    /// Index into [`ArenaPlan::arenas`], whose devices it gets; `limit` and `huge` are not for it.
    pub arena: usize,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArenaPlan {
    /// Arenas by order of naming.
    pub arenas: Vec<PlannedArena>,
    /// Rules in the order they are tried.
    pub rules: Vec<ArenaRule>,
    /// Segments of shared memory, in the order they are tried.
    pub segments: Vec<Segments>,
    /// Where the rest goes; `None`: ordinary memory.
    pub default: Option<usize>,
}

/// A plan that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More than is read.
    #[error("a plan has {PLAN_LIMIT} bytes at most")]
    TooLong,
    /// Not text.
    #[error("a plan is UTF-8 text")]
    NotText,
    /// A line that says nothing that is known.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl ArenaPlan {
    /// Reads a plan.
    ///
    /// # Errors
    /// [`PlanError`] for the first line that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, PlanError> {
        if bytes.len() > PLAN_LIMIT {
            return Err(PlanError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| PlanError::NotText)?;
        let mut plan = Self::default();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split('#').next().unwrap_or("").split_whitespace().collect();
            plan.line(&words).map_err(|what| PlanError::Line { line: at + 1, what })?;
        }
        Ok(plan)
    }

    /// Holds the arenas' devices against the nodes there are.
    ///
    /// # Errors
    /// The first arena that cannot be, by name, and why.
    pub fn check(&self, nodes: &[NodeId]) -> Result<(), (String, ArenaError)> {
        self.arenas.iter().try_for_each(|a| a.devices.check(nodes).map_err(|e| (a.name.clone(), e)))
    }

    /// Whether rules ask where a call came from, which costs time on each.
    #[must_use]
    pub fn has_sites(&self) -> bool {
        self.rules.iter().any(|r| matches!(r.when, AllocationCondition::Site { .. }))
    }

    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        if let Some(word) = words.iter().find(|w| w.len() > WORD_LIMIT) {
            return Err(format!("a word of {} bytes; {WORD_LIMIT} at most", word.len()));
        }
        match *words {
            [] => Ok(()),
            ["arena", name, ref rest @ ..] => self.arena(name, rest),
            ["default", arena] => {
                if self.default.is_some() {
                    return Err("a second default".into());
                }
                self.default = Some(self.named(arena)?);
                Ok(())
            }
            ["size", range, arena] => self.rule(size(range)?, arena),
            ["thread", thread, arena] => self.rule(threads(thread), arena),
            ["site", site, arena] => self.rule(place(site)?, arena),
            ["shm", name, arena] => self.segments(name, arena),
            [word, ..] => Err(format!(
                "{word:?}: a line is arena, size, thread, site, shm or default, and its words"
            )),
        }
    }

    fn named(&self, name: &str) -> Result<usize, String> {
        self.arenas
            .iter()
            .position(|a| a.name == name)
            .ok_or_else(|| format!("no arena is called {name:?} before"))
    }

    fn rule(&mut self, when: AllocationCondition, arena: &str) -> Result<(), String> {
        if self.rules.len() == RULES_LIMIT {
            return Err(format!("more than {RULES_LIMIT} rules"));
        }
        let arena = self.named(arena)?;
        self.rules.push(ArenaRule { when, arena });
        Ok(())
    }

    fn segments(&mut self, name: &str, arena: &str) -> Result<(), String> {
        if self.segments.len() == RULES_LIMIT {
            return Err(format!("more than {RULES_LIMIT} lines of shm"));
        }
        let arena = self.named(arena)?;
        if matches!(self.arenas[arena].devices, Devices::Spill(_)) {
            return Err("shared memory has no spill order; give it an arena with only, prefer or \
                interleave"
                .into());
        }
        let (name, open) = starred(name.strip_prefix('/').unwrap_or(name));
        if name.contains('/') || (name.is_empty() && !open) {
            return Err(format!(
                "{name:?}: give the name of shared memory as /name, or how it begins as /name*"
            ));
        }
        self.segments.push(Segments { name, open, arena });
        Ok(())
    }

    fn arena(&mut self, name: &str, mut words: &[&str]) -> Result<(), String> {
        if self.arenas.len() == ARENAS_LIMIT {
            return Err(format!("more than {ARENAS_LIMIT} arenas"));
        }
        if self.named(name).is_ok() {
            return Err(format!("a second arena {name:?}"));
        }
        let mut arena = PlannedArena {
            name: name.to_owned(),
            devices: Devices::Anywhere,
            limit: None,
            huge_pages: false,
        };
        loop {
            words = match *words {
                [] => break,
                ["huge", ref rest @ ..] => {
                    arena.huge_pages = true;
                    rest
                }
                ["anywhere", ref rest @ ..] => rest,
                ["limit", bytes, ref rest @ ..] => {
                    let bytes = number(bytes).filter(|b| *b > 0);
                    arena.limit = Some(Bytes(bytes.ok_or("limit: give bytes, such as 8G")?));
                    rest
                }
                [how @ ("only" | "prefer" | "interleave" | "spill"), list, ref rest @ ..] => {
                    let nodes = nodes(list)?;
                    arena.devices = match how {
                        "only" => Devices::Only(nodes),
                        "prefer" => Devices::Prefer(nodes),
                        "interleave" => Devices::Interleave(nodes),
                        _ => Devices::Spill(nodes),
                    };
                    rest
                }
                [word, ..] => {
                    return Err(format!(
                        "{word:?}: an arena has only, prefer, interleave or spill with nodes, \
                            limit BYTES, huge"
                    ))
                }
            };
        }
        self.arenas.push(arena);
        Ok(())
    }
}

/// Bytes with a suffix K, M, G or T, by 1024.
fn number(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn nodes(list: &str) -> Result<Vec<NodeId>, String> {
    let nodes: Option<Vec<NodeId>> = list.split(',').map(|n| n.parse().ok().map(NodeId)).collect();
    let nodes = nodes.ok_or_else(|| format!("{list:?}: give nodes as 0 or 1,0"))?;
    for (at, node) in nodes.iter().enumerate() {
        if nodes[..at].contains(node) {
            return Err(format!("node {node} is named twice"));
        }
    }
    Ok(nodes)
}

fn size(range: &str) -> Result<AllocationCondition, String> {
    let wrong = || format!("{range:?}: give bytes as 64K..1M, 1M.. or ..64K");
    let (from, to) = range.split_once("..").ok_or_else(wrong)?;
    let from = if from.is_empty() { 0 } else { number(from).ok_or_else(wrong)? };
    let to = if to.is_empty() { u64::MAX } else { number(to).ok_or_else(wrong)? };
    if from >= to {
        return Err(format!("{range:?} holds no size"));
    }
    Ok(AllocationCondition::Size(from, to))
}

fn threads(thread: &str) -> AllocationCondition {
    if thread == "main" {
        return AllocationCondition::ThreadNumber(0);
    }
    if let Ok(number) = thread.parse() {
        return AllocationCondition::ThreadNumber(number);
    }
    let (name, open) = starred(thread);
    AllocationCondition::ThreadName { name, open }
}

/// A name, and whether a star at its end stood for anything.
fn starred(name: &str) -> (String, bool) {
    let (name, open) = name.strip_suffix('*').map_or((name, false), |name| (name, true));
    (name.to_owned(), open)
}

fn place(site: &str) -> Result<AllocationCondition, String> {
    let wrong = || format!("{site:?}: give module and offset, such as libfoo.so.1+0x4f21");
    let (module, offset) = site.rsplit_once("+0x").ok_or_else(wrong)?;
    if module.is_empty() || module.contains('/') {
        return Err(wrong());
    }
    let offset = u64::from_str_radix(offset, 16).map_err(|_| wrong())?;
    Ok(AllocationCondition::Site { module: module.to_owned(), offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "# all there is\n\
        arena fast only 1 limit 8G huge # near\n\
        arena bulk spill 1,0\n\narena plain\n\
        size 1M.. bulk\nsize 64K..1M fast\nsize ..16 plain\n\
        thread 3 fast\nthread main plain\nthread solver* fast\nthread io bulk\n\
        site libfoo.so.1+0x4f21 fast\nshm /psm3* fast\nshm one plain\ndefault plain\n";

    #[test]
    fn an_example_of_everything() {
        let plan = ArenaPlan::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(plan.arenas.len(), 3);
        assert_eq!(plan.arenas[0].limit, Some(Bytes::gib(8)));
        assert!(plan.arenas[0].huge_pages && plan.has_sites());
        assert_eq!(plan.arenas[1].devices, Devices::Spill(vec![NodeId(1), NodeId(0)]));
        assert_eq!(
            plan.rules[1],
            ArenaRule { when: AllocationCondition::Size(64 << 10, 1 << 20), arena: 0 }
        );
        assert_eq!(plan.rules[4].when, AllocationCondition::ThreadNumber(0));
        assert_eq!(
            plan.rules[5].when,
            AllocationCondition::ThreadName { name: "solver".into(), open: true }
        );
        assert_eq!(
            plan.rules[7].when,
            AllocationCondition::Site { module: "libfoo.so.1".into(), offset: 0x4f21 }
        );
        assert_eq!(plan.segments[0], Segments { name: "psm3".into(), open: true, arena: 0 });
        assert_eq!(plan.segments[1], Segments { name: "one".into(), open: false, arena: 2 });
        assert_eq!(plan.default, Some(2));
        assert_eq!(ArenaPlan::parse(b""), Ok(ArenaPlan::default()));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, what) in [
            ("size 1M.. fast", "no arena is called \"fast\""),
            ("arena a\narena a", "line 2: a second arena"),
            ("arena a only 1,1", "named twice"),
            ("arena a only one", "give nodes"),
            ("arena a limit 0", "give bytes"),
            ("arena a limit 99999999999T", "give bytes"),
            ("arena a\nsize 5..5 a", "holds no size"),
            ("arena a\nsize a..b a", "give bytes"),
            ("arena a\nsite /lib/x+0x1 a", "give module"),
            ("arena a\nsite x+1 a", "give module"),
            ("arena a\nshm /x/y a", "give the name of shared memory"),
            ("arena a\nshm / a", "give the name of shared memory"),
            ("arena a spill 0\nshm /x a", "no spill order"),
            ("arena a\ndefault a\ndefault a", "line 3: a second default"),
            ("put all here", "a line is"),
        ] {
            let error = ArenaPlan::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
        assert_eq!(ArenaPlan::parse(&[0xff]), Err(PlanError::NotText));
        assert_eq!(ArenaPlan::parse(&vec![b' '; PLAN_LIMIT + 1]), Err(PlanError::TooLong));
        let many = (0..=ARENAS_LIMIT).map(|n| format!("arena a{n}\n")).collect::<String>();
        assert!(ArenaPlan::parse(many.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("more than 256 arenas"));
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(parts in prop::collection::vec(prop::sample::select(vec![
            "arena ", "a", "b", " only ", "1", ",", "limit ", "18446744073709551615", "T", "size ",
            "..", "\n", " ",
            "thread ", "*", "main", "shm ", "/", "spill ", "site ", "+0x", "ffffffffffffffffff",
            "default ", "#", "huge", "\u{e9}", "\0",
        ]), 0..60)) {
            let text = parts.concat();
            if let Ok(plan) = ArenaPlan::parse(text.as_bytes()) {
                prop_assert!(plan.rules.iter().all(|r| r.arena < plan.arenas.len()));
                prop_assert!(plan.default.is_none_or(|d| d < plan.arenas.len()));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _survived = ArenaPlan::parse(&bytes);
        }
    }
}

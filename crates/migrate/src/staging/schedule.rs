//! What a thread does next. Pure: counts in, a choice out.

/// What is where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Blocks that were not fetched yet, with one that can be asked for.
    pub(super) waiting: usize,
    /// Buffers with nothing in them.
    pub(super) free: usize,
    /// Blocks in buffers, to be worked on.
    pub(super) ready: usize,
    /// Blocks worked on, to be returned.
    pub(super) done: usize,
    /// Blocks that are not through yet, wherever they are, with one that may still come.
    pub(super) left: usize,
    /// Whether a copy under way has parts that nobody has taken.
    pub(super) parts: bool,
    /// Threads that copy now.
    pub(super) copying: u32,
    /// Threads that shall.
    pub(super) migrators: u32,
    /// Copies at once by which the slow node is busy: one more makes all of them slower.
    pub(super) most: u32,
}

/// What a thread may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Both, as is needed.
    Either,
    /// The kernel only.
    Worker,
    /// Copies only.
    Migrator,
}

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Takes part in a copy that is under way.
    Help,
    /// Begins to copy the next block to a free buffer, or asks for it where none is known.
    Bring,
    /// Begins to copy a finished block back.
    Return,
    /// Runs the kernel on a ready block.
    Work,
    /// Waits: nothing is ready to be worked on.
    Starve,
    /// Waits: no buffer is free to copy to.
    Crowd,
    /// All is done.
    End,
}

/// The choice. What is being copied is completed before another copy is begun; finished blocks
/// leave before new ones come, for they free buffers.
pub(super) fn choose(role: Role, c: &Counts) -> Choice {
    if c.left == 0 {
        return Choice::End;
    }
    let bring = c.waiting > 0 && c.free > 0;
    let copy = match (c.parts, c.done > 0) {
        (true, _) => Some(Choice::Help),
        (false, true) => Some(Choice::Return),
        (false, false) => bring.then_some(Choice::Bring),
    };
    let work = (c.ready > 0).then_some(Choice::Work);
    let starve =
        || if c.waiting > 0 && c.free == 0 && c.ready > 0 { Choice::Crowd } else { Choice::Starve };
    match role {
        Role::Worker => work.unwrap_or(Choice::Starve),
        Role::Migrator if c.waiting == 0 && copy.is_none() => Choice::Crowd,
        Role::Migrator => copy.unwrap_or(Choice::Crowd),
        // As many as shall copy do; the others work, and help to copy rather than wait, while the
        // slow node has something left. More would end at the same time, then work at the same
        // time, and copies would no longer hide behind work.
        Role::Either if c.copying < c.migrators => copy.or(work).unwrap_or_else(starve),
        Role::Either => work.or(copy.filter(|_| c.copying < c.most)).unwrap_or_else(starve),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Counts = Counts {
        waiting: 5,
        free: 1,
        ready: 1,
        done: 0,
        left: 8,
        parts: false,
        copying: 0,
        migrators: 1,
        most: 4,
    };

    #[test]
    fn copies_come_first_up_to_their_number_and_then_work() {
        assert_eq!(choose(Role::Either, &C), Choice::Bring);
        assert_eq!(choose(Role::Either, &Counts { done: 1, ..C }), Choice::Return);
        assert_eq!(choose(Role::Either, &Counts { copying: 1, ..C }), Choice::Work);
        assert_eq!(
            choose(Role::Either, &Counts { copying: 1, ready: 0, ..C }),
            Choice::Bring,
            "rather than wait"
        );
        assert_eq!(
            choose(Role::Either, &Counts { copying: 1, ready: 0, most: 1, ..C }),
            Choice::Starve,
            "no faster by two"
        );
        assert_eq!(
            choose(Role::Either, &Counts { ready: 0, most: 0, ..C }),
            Choice::Bring,
            "one copies in any case"
        );
        assert_eq!(choose(Role::Either, &Counts { free: 0, ..C }), Choice::Work);
        assert_eq!(choose(Role::Either, &Counts { free: 0, ready: 0, ..C }), Choice::Starve);
        assert_eq!(choose(Role::Either, &Counts { left: 0, ..C }), Choice::End);
    }

    #[test]
    fn what_is_being_copied_is_completed_first() {
        let c = Counts { parts: true, done: 1, ..C };
        assert_eq!(choose(Role::Either, &c), Choice::Help);
        assert_eq!(choose(Role::Migrator, &c), Choice::Help);
        assert_eq!(choose(Role::Either, &Counts { copying: 1, ..c }), Choice::Work);
        assert_eq!(
            choose(Role::Either, &Counts { copying: 1, ready: 0, ..c }),
            Choice::Help,
            "rather than wait"
        );
        assert_eq!(choose(Role::Worker, &Counts { ready: 0, ..c }), Choice::Starve);
        assert_eq!(
            choose(Role::Migrator, &Counts { waiting: 0, free: 0, done: 0, ..c }),
            Choice::Help
        );
    }

    /// Time until the first block is there, and blocks that are there at half the time of all, with
    /// four threads that copy and parts that take a tick each.
    #[test]
    fn blocks_come_one_after_the_other() {
        let (bytes, migrators) = (2 << 20, 4);
        let mut copies = super::super::copies::Copies::default();
        let mut c = Counts { waiting: 8, free: 8, ready: 0, left: 8, migrators, ..C };
        let (mut there, mut next) = (Vec::new(), 0);
        for tick in 1..=100 {
            let mut taken = Vec::new();
            for _ in 0..migrators {
                c.parts = copies.has_parts();
                match choose(Role::Migrator, &c) {
                    Choice::Help => taken.extend(copies.take()),
                    Choice::Bring => {
                        taken.push(copies.begin(next, next, false, bytes));
                        (next, c.waiting, c.free) = (next + 1, c.waiting - 1, c.free - 1);
                    }
                    _ => {}
                }
            }
            there.extend(
                taken.iter().filter(|part| copies.part_done(part)).map(|part| (part.block, tick)),
            );
        }
        // Eight parts a block by four threads.
        let expected: Vec<(usize, i32)> =
            (0..8).map(|block| (block, 2 * (block as i32 + 1))).collect();
        assert_eq!(there, expected);
    }

    #[test]
    fn fixed_roles_are_kept() {
        assert_eq!(choose(Role::Worker, &Counts { ready: 0, ..C }), Choice::Starve);
        assert_eq!(choose(Role::Worker, &C), Choice::Work);
        assert_eq!(choose(Role::Migrator, &C), Choice::Bring);
        assert_eq!(choose(Role::Migrator, &Counts { free: 0, ..C }), Choice::Crowd);
        assert_eq!(choose(Role::Migrator, &Counts { waiting: 0, ..C }), Choice::Crowd);
        assert_eq!(choose(Role::Migrator, &Counts { waiting: 0, done: 2, ..C }), Choice::Return);
    }

    /// Whatever the threads' order, all blocks come through: those that are known, and those that
    /// are asked for one by one.
    #[test]
    fn no_order_of_threads_gets_stuck() {
        for seed in 0..400_u64 {
            let mut seed = terrace_types::Seed(seed);
            let most = (seed.0 % 3) as u32;
            // Blocks that come when they are asked for; and whether all have come, and somebody
            // asks.
            let (mut to_come, mut ended, mut asked) =
                (if seed.0 < 200 { 0 } else { 9 }, false, false);
            let mut known = 9 - to_come;
            let mut through = 0;
            let mut c = Counts { free: 2, ready: 0, most, ..C };
            // Copies of three parts each: parts that nobody has, parts under way, of each; and
            // whether it goes back.
            let mut open: Vec<(u32, u32, bool)> = Vec::new();
            let roles = if seed.0 % 2 == 0 {
                [Role::Either; 3]
            } else {
                [Role::Worker, Role::Migrator, Role::Worker]
            };
            let mut busy: [Option<(Choice, bool)>; 3] = [None; 3];
            for _ in 0..10_000 {
                let (random, next) = seed.next();
                seed = next;
                let thread = (random % 3) as usize;
                c.parts = open.iter().any(|copy| copy.0 > 0);
                (c.waiting, c.left) = (
                    known + usize::from(!ended && !asked),
                    9 - to_come - through + usize::from(!ended),
                );
                match busy[thread].take() {
                    None => {
                        let choice = choose(roles[thread], &c);
                        match choice {
                            Choice::Bring if known == 0 => {
                                (asked, busy[thread]) = (true, Some((Choice::Bring, true)));
                                continue;
                            }
                            Choice::Bring => (known, c.free) = (known - 1, c.free - 1),
                            Choice::Return => c.done -= 1,
                            Choice::Work => c.ready -= 1,
                            Choice::Help => {}
                            _ => continue,
                        }
                        let mut back = false;
                        if choice != Choice::Work {
                            c.copying += 1;
                            if choice != Choice::Help {
                                open.push((3, 0, choice == Choice::Return));
                            }
                            let copy = open.iter_mut().find(|copy| copy.0 > 0).unwrap();
                            (copy.0, copy.1, back) = (copy.0 - 1, copy.1 + 1, copy.2);
                        }
                        busy[thread] = Some((choice, back));
                    }
                    Some((Choice::Work, _)) => c.done += 1,
                    // An answer.
                    Some((Choice::Bring, true)) => {
                        (asked, ended) = (false, to_come == 0);
                        (known, to_come) =
                            (known + usize::from(!ended), to_come - usize::from(!ended));
                    }
                    Some((_, back)) => {
                        c.copying -= 1;
                        // Parts of one direction are alike: any copy that has one under way.
                        let at = open.iter().position(|copy| copy.1 > 0 && copy.2 == back).unwrap();
                        open[at].1 -= 1;
                        if (open[at].0, open[at].1) == (0, 0) {
                            open.remove(at);
                            if back {
                                (c.free, through) = (c.free + 1, through + 1);
                            } else {
                                c.ready += 1;
                            }
                        }
                    }
                }
            }
            assert_eq!((through, c.free, ended), (9, 2, true), "{c:?}");
        }
    }
}

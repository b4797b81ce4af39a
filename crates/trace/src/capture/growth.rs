//! How old registers' values are while a path comes again and again, without going through each
//! turn.

use super::code::{depends, grown, RegisterAges, OLD, REGISTERS};

/// So many turns of a path are looked at together at most: their words lie in the processor's
/// nearest cache.
const MAX_TURNS: usize = 64;
/// A path whose turns are each encoded in another way is left alone for so many turns at most.
const MAX_PAUSE: u8 = 31;

/// Whether and how far to look ahead where a path comes again.
#[derive(Debug, Default)]
pub struct LoopLookahead {
    /// None where turns cannot be foreseen.
    growth: Option<PathGrowth>,
    /// So many are looked at together next, and not before it has come so often.
    expected: u8,
    pause: u8,
    paused: u8,
}

impl LoopLookahead {
    pub fn new(growth: Option<PathGrowth>) -> Self {
        Self { growth, expected: 4, ..Self::default() }
    }

    /// How many turns to look at together now, from these ages on; 0 where one by one is better.
    #[inline]
    pub fn most(&mut self, ages: &RegisterAges) -> usize {
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        let most = self
            .growth
            .as_ref()
            .map_or(0, |growth| growth.steady(ages).min(usize::from(self.expected)));
        if most < 2 {
            0
        } else {
            most
        }
    }

    /// So many were reported together.
    pub fn came(&mut self, turns: usize) {
        self.expected = (2 * turns).clamp(2, MAX_TURNS) as u8;
        self.paused = if turns > 0 { 0 } else { (2 * self.paused + 1).min(MAX_PAUSE) };
        self.pause = self.paused;
    }

    /// Ages of the registers behind so many turns.
    pub fn behind(&self, ages: &RegisterAges, turns: usize) -> RegisterAges {
        self.growth.as_ref().map_or(*ages, |growth| growth.behind(ages, turns))
    }
}

/// A register that a path changes: registers it comes from (bit `r`), and which load of the path,
/// counted from 1.
pub type RegisterChange = (u8, u16, u16);

/// An access's address: registers as the path found them, loads of the path before it, and how many
/// loads ago the latest load of the path was that it comes from.
pub type AccessAddress = (u16, u8, u8);

/// See the module. All of it holds once the path has come twice in a row.
#[derive(Debug)]
pub struct PathGrowth {
    loads: u16,
    /// Registers that are the same age behind each turn.
    same: Box<[(u8, u8)]>,
    /// Registers that come from others: which of the former, and an age that they have at most.
    derived: Box<[(u8, u16, u8)]>,
    /// Accesses whose dependence may change: registers that grow older, loads before the access,
    /// the most it can be.
    open: Box<[(u16, u8, u8)]>,
}

impl PathGrowth {
    /// Of a path with so many loads. None if registers depend on each other in some other way.
    pub fn new(
        loads: u16,
        changes: &[RegisterChange],
        addresses: impl Iterator<Item = AccessAddress>,
    ) -> Option<Self> {
        let old = u16::from(OLD);
        let (mut older, mut same) = (u16::MAX, Vec::new());
        for (register, from, load) in changes {
            if *load > 0 || *from == 0 {
                // A load of its own is younger than whatever else it comes from.
                let age = if *load > 0 { (loads - load).min(old) } else { old };
                same.push((*register, age as u8));
                older &= !(1 << register);
            } else if *from != 1 << register {
                older &= !(1 << register);
            }
        }
        let known = same.iter().fold(older, |known, (r, _)| known | 1 << r);
        // The least of those that are the same, so much later.
        let least = |from: u16, later: u16| {
            let ages = same
                .iter()
                .filter(|(r, _)| from >> r & 1 == 1)
                .map(|(_, age)| u16::from(*age) + later);
            ages.min().unwrap_or(old).min(old) as u8
        };
        let mut derived = Vec::new();
        for (register, from, load) in changes {
            if *load == 0 && *from != 0 && *from != 1 << register {
                if from & !known != 0 {
                    return None;
                }
                derived.push((*register, from & older, least(*from, loads)));
            }
        }
        let mut open = Vec::new();
        for (from, before, latest) in addresses {
            let (mut growing, mut most) =
                (from & older, least(from, u16::from(before)).min(latest));
            for (_, more, age) in derived.iter().filter(|(r, ..)| from >> r & 1 == 1) {
                growing |= more;
                most = most.min(age.saturating_add(before));
            }
            if growing != 0 && loads > 0 {
                open.push((growing, before, most));
            }
        }
        Some(Self { loads, same: same.into(), derived: derived.into(), open: open.into() })
    }

    /// For how many turns no dependence changes, this one included, from these ages on.
    pub fn steady(&self, ages: &RegisterAges) -> usize {
        let turns = self.open.iter().map(|(growing, before, most)| {
            let now = youngest(ages, *growing).saturating_add(*before);
            if *most <= now || now >= OLD {
                usize::MAX
            } else if depends(now) < depends(OLD - 1) {
                1
            } else if *most < OLD {
                usize::MAX
            } else {
                usize::from(OLD - now).div_ceil(usize::from(self.loads))
            }
        });
        turns.min().unwrap_or(usize::MAX)
    }

    /// Ages behind so many turns, at least one.
    pub fn behind(&self, ages: &RegisterAges, turns: usize) -> RegisterAges {
        let loads = turns as u64 * u64::from(self.loads);
        let mut after = grown(*ages, loads);
        for (register, growing, most) in &self.derived {
            let grown = u64::from(youngest(ages, *growing)) + loads;
            after[usize::from(*register) % REGISTERS] = grown.min(u64::from(*most)) as u8;
        }
        for (register, age) in &self.same {
            after[usize::from(*register) % REGISTERS] = *age;
        }
        after
    }
}

/// The least age of these registers.
#[inline]
fn youngest(ages: &RegisterAges, registers: u16) -> u8 {
    let (mut age, mut left) = (OLD, registers);
    while left != 0 {
        age = age.min(ages[left.trailing_zeros() as usize % REGISTERS]);
        left &= left - 1;
    }
    age
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The age of what comes from these registers and this load, turn by turn.
    fn age(ages: &RegisterAges, from: u16, loads: u16, load: u16) -> u8 {
        let registers =
            (0..REGISTERS).filter(|r| from >> r & 1 == 1).map(|r| u16::from(ages[r]) + loads);
        let own = (load > 0).then(|| loads - load);
        registers.chain(own).min().unwrap_or(u16::MAX).min(u16::from(OLD)) as u8
    }

    /// A path of 1 to 9 loads that changes some of eight registers, and addresses it uses.
    fn path() -> impl Strategy<Value = (u16, Vec<RegisterChange>, Vec<AccessAddress>)> {
        (1u16..10).prop_flat_map(|loads| {
            let from = || prop_oneof![Just(0u16), (0u16..8).prop_map(|r| 1 << r), 0u16..256];
            let change = (from(), prop_oneof![3 => Just(0u16), 1 => 1..=loads]);
            let changes = vec(proptest::option::weighted(0.4, change), 8).prop_map(|all| {
                let reported = all.into_iter().enumerate();
                reported
                    .filter_map(|(r, c)| c.map(|(from, load)| (r as u8, from, load)))
                    .collect::<Vec<_>>()
            });
            // The latest load an address comes from lies among those before it.
            let address = (1u16..256, 0..loads as u8, any::<u8>(), any::<bool>()).prop_map(
                |(from, before, at, own)| {
                    let latest = if own && before > 0 { at % before } else { OLD };
                    (from, before, latest)
                },
            );
            (Just(loads), changes, vec(address, 0..5))
        })
    }

    proptest! {
        #[test]
        fn turns_together_are_turns_one_by_one(
            (loads, changes, addresses) in path(),
            begin in vec(0..=OLD, REGISTERS),
            turns in 1usize..40,
        ) {
            let step = |ages: &RegisterAges| {
                let mut after = grown(*ages, u64::from(loads));
                for (register, from, load) in &changes {
                    after[usize::from(*register)] = age(ages, *from, loads, *load);
                }
                after
            };
            let reported = |ages: &RegisterAges| -> Vec<u8> {
                let one = |(from, before, latest): &AccessAddress| {
                    depends((youngest(ages, *from) + before).min(*latest).min(OLD))
                };
                addresses.iter().map(one).collect()
            };
            let begin: RegisterAges = begin.try_into().expect("sixteen");
            let Some(growth) = PathGrowth::new(loads, &changes, addresses.iter().copied()) else {
                // Only registers that come from registers that come from others are too much.
                let complex = changes.iter()
                    .filter(|(r, from, load)| *load == 0 && *from != 0 && *from != 1 << r);
                prop_assert!(complex.count() > 0);
                return Ok(());
            };
            let start = step(&step(&begin));
            let mut ages = start;
            for turn in 0..turns {
                if turn < growth.steady(&start) {
                    prop_assert_eq!(reported(&ages), reported(&start), "turn {}", turn);
                }
                ages = step(&ages);
                prop_assert_eq!(growth.behind(&start, turn + 1), ages);
            }
        }
    }
}

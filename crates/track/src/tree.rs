//! The processes of a target: those named, and all that they fork.

use std::collections::{BTreeMap, BTreeSet};
use terrace_sys::{task, Root, SysError};
use terrace_types::Pid;

/// Follows births and deaths.
#[derive(Debug)]
pub struct ProcessTree {
    root: Root,
    /// Living processes and when they started: a pid given to somebody else is noticed.
    alive: BTreeMap<Pid, u64>,
    /// Our own pid, whose children (orphans given to us) belong to the target too.
    reaper: Option<Pid>,
    /// Children of ours that are no part of the target.
    not_ours: BTreeSet<Pid>,
    children_files: bool,
}

/// What a sample found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TreeChange {
    pub(crate) born: Vec<Pid>,
    pub(crate) died: Vec<Pid>,
}

impl ProcessTree {
    /// Follows `pid` and its descendants.
    #[must_use]
    pub fn new(root: Root, pid: Pid) -> Self {
        let start = task::stat(&root, pid).map_or(0, |s| s.start_ticks);
        Self {
            root,
            alive: BTreeMap::from([(pid, start)]),
            reaper: None,
            not_ours: BTreeSet::new(),
            children_files: true,
        }
    }

    /// This process is a child subreaper: children it has, save `except`, belong to the target.
    #[must_use]
    pub fn adopting(mut self, reaper: Pid, except: impl IntoIterator<Item = Pid>) -> Self {
        self.reaper = Some(reaper);
        self.not_ours.extend(except);
        self
    }

    /// A child of ours that is no part of the target (a guardian).
    pub fn exclude(&mut self, pid: Pid) {
        self.not_ours.insert(pid);
        self.alive.remove(&pid);
    }

    /// Living processes, in order.
    pub fn pids(&self) -> impl Iterator<Item = Pid> + '_ {
        self.alive.keys().copied()
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// Reads again which processes live.
    pub fn update(&mut self) {
        self.refresh();
    }

    /// Reads again.
    pub(crate) fn refresh(&mut self) -> TreeChange {
        let mut change = TreeChange::default();
        let root = self.root.clone();
        self.alive.retain(|pid, start| {
            let lives = task::stat(&root, *pid)
                .is_ok_and(|s| !s.ended() && (*start == 0 || s.start_ticks == *start));
            if !lives {
                change.died.push(*pid);
            }
            lives
        });
        let mut queue: Vec<Pid> = self.alive.keys().copied().chain(self.reaper).collect();
        let mut by_parent: Option<BTreeMap<Pid, Vec<Pid>>> = None;
        while let Some(parent) = queue.pop() {
            for child in self.children(parent, &mut by_parent) {
                if self.alive.contains_key(&child) || self.not_ours.contains(&child) {
                    continue;
                }
                let Ok(stat) = task::stat(&self.root, child) else {
                    continue;
                };
                if stat.ended() || stat.name == "terrace-guard" {
                    continue;
                }
                self.alive.insert(child, stat.start_ticks);
                change.born.push(child);
                queue.push(child);
            }
        }
        change
    }

    fn children(
        &mut self,
        parent: Pid,
        by_parent: &mut Option<BTreeMap<Pid, Vec<Pid>>>,
    ) -> Vec<Pid> {
        if self.children_files {
            match task::children(&self.root, parent) {
                Err(SysError::Absent { .. }) => self.children_files = false,
                other => return other.unwrap_or_default(),
            }
        }
        let all = by_parent.get_or_insert_with(|| {
            let mut map: BTreeMap<Pid, Vec<Pid>> = BTreeMap::new();
            for (child, parent) in task::all_parents(&self.root).unwrap_or_default() {
                map.entry(parent).or_default().push(child);
            }
            map
        });
        all.get(&parent).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_children_are_followed_and_their_end_noticed() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sh -c 'sleep 30 & wait' & wait"])
            .spawn()
            .unwrap();
        let mut tree = ProcessTree::new(Root::live(), Pid(child.id() as i32));
        let mut born = 0;
        for _ in 0..200 {
            born += tree.refresh().born.len();
            if born >= 2 {
                break;
            }
            terrace_sys::sleep(terrace_types::Nanos::millis(5));
        }
        assert_eq!(born, 2);
        for pid in tree.pids().collect::<Vec<_>>() {
            if let Ok(handle) = terrace_sys::open_pidfd(pid) {
                let _ended = terrace_sys::signal_process(&handle, 15);
            }
        }
        child.wait().unwrap();
        for _ in 0..200 {
            tree.refresh();
            if tree.is_empty() {
                return;
            }
            terrace_sys::sleep(terrace_types::Nanos::millis(5));
        }
        panic!("still alive: {:?}", tree.pids().collect::<Vec<_>>());
    }
}

//! `terrace doctor`: what this machine can do, what stands in the way, and what would help.

use crate::manage::{online_tiers, would_manage};
use serde::Serialize;
use terrace_alloc::gpu::{CudaError, GpuClass};
use terrace_machine::{explain_with, Severity};
use terrace_sys::{perf_paranoia, Capabilities, Root};
use terrace_topology::{load, MachineSource};
use terrace_track::PerfSamples;
use terrace_types::text::wrap;

/// One line of the examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What it is about.
    pub subject: String,
    /// Whether it works.
    pub ok: bool,
    /// What it serves, or why it does not.
    pub text: String,
    /// The one command that would help, where one would.
    pub command: Option<String>,
}

/// The whole examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// Nodes of each tier, best first.
    pub tiers: Vec<Vec<u16>>,
    /// What was looked at.
    pub items: Vec<Item>,
    /// Whether `terrace run` would manage a command here.
    pub manages: bool,
    /// One line for a shell that grants all that this user lacks; none where nothing helps.
    pub grant: Option<String>,
}

/// Looks at the machine; changes nothing.
#[must_use]
pub fn examine() -> Examination {
    let root = Root::live();
    let able = Capabilities::probe(&root);
    let mut items: Vec<Item> = able
        .all()
        .into_iter()
        .map(|c| Item {
            subject: c.name.to_owned(),
            ok: c.usable,
            text: if c.usable { c.purpose.to_owned() } else { c.why_not.clone() },
            command: c.remedy.clone(),
        })
        .collect();
    let mut tiers = Vec::new();
    let mut manages = false;
    match load(&MachineSource::Live) {
        Ok(survey) => {
            if let Ok(found) = online_tiers(&survey.machine) {
                tiers = found.iter().map(|t| t.nodes.iter().map(|n| n.0).collect()).collect();
            }
            let verdict = would_manage(survey.machine.clone(), &able);
            manages = verdict.is_ok();
            items.extend(verdict.err().map(|why| Item {
                subject: "run".to_owned(),
                ok: false,
                text: format!("programs run unmanaged: {why}"),
                command: None,
            }));
            items.extend(explain_with(&survey.machine, &survey.surroundings).into_iter().map(
                |f| Item {
                    subject: "machine".to_owned(),
                    // Notes are for information; nothing is broken.
                    ok: f.severity != Severity::Obstacle,
                    text: f.text,
                    command: f.command,
                },
            ));
        }
        Err(e) => items.push(Item {
            subject: "machine".into(),
            ok: false,
            text: e.to_string(),
            command: None,
        }),
    }
    items.push(sampling(&root));
    items.push(gpus(GpuClass::find()));
    Examination { tiers, items, manages, grant: able.grant_all() }
}

/// Whether the processor's samples can be had, by whom, tried now.
fn sampling(root: &Root) -> Item {
    let level = match perf_paranoia(root) {
        Some(level) => format!("kernel.perf_event_paranoid is {level}"),
        None => "this kernel has no perf events".to_owned(),
    };
    let (ok, text) = match PerfSamples::new(root.clone(), 0.01) {
        Ok(tracker) => {
            let whose =
                if tracker.samples_cpus() { "all programs" } else { "this user's programs" };
            let events = tracker.event_names().join(", ");
            (true, format!("accesses of {whose} are sampled by {events}; {level}"))
        }
        Err(error) => (false, format!("{error}; {level}")),
    };
    Item { subject: "perf".to_owned(), ok, text, command: None }
}

/// The class of memory whose indices are GPUs. Without one nothing is broken.
fn gpus(found: Result<GpuClass, CudaError>) -> Item {
    let (ok, text) = match found {
        Ok(class) => (true, format!("managed memory for the allocation library, {class}")),
        Err(why) => (false, format!("no CUDA: {why}")),
    };
    Item { subject: "GPU memory".to_owned(), ok, text, command: None }
}

/// The same as a note of `terrace tiers` of the live machine.
#[must_use]
pub fn gpus_note() -> String {
    match GpuClass::find() {
        Ok(class) => format!("CUDA managed memory, beside the tiers: {class}"),
        Err(why) => format!("No CUDA: {why}."),
    }
}

impl Examination {
    /// For a terminal of so many columns.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let mut out = String::new();
        let tiers: Vec<String> = self
            .tiers
            .iter()
            .map(|t| format!("{t:?}").trim_matches(['[', ']']).to_owned())
            .collect();
        out.push_str(&match tiers.len() {
            0 => "No memory tiers were found.\n".to_owned(),
            1 => format!("One memory tier: node {}. Nothing to place.\n", tiers[0]),
            n => format!("{n} memory tiers, best first: nodes {}.\n", tiers.join(" | ")),
        });
        let verdict = if self.manages { "would manage" } else { "would run, unmanaged," };
        out.push_str(&format!("terrace run {verdict} a command here.\n\n"));
        for item in &self.items {
            let mark = if item.ok { "ok" } else { "--" };
            let lead = format!("{mark}  {}: ", item.subject);
            wrap(&mut out, &item.text, &lead, "      ", columns);
            // What root must do is one command for all, below.
            let own = |command: &&String| self.grant.is_none() || !command.starts_with("sudo ");
            if let Some(command) = item.command.as_ref().filter(own) {
                wrap(&mut out, command, "      try: ", "      ", columns);
            }
        }
        if let Some(grant) = &self.grant {
            out.push_str(&format!("\nOne command grants all that this user lacks:\n  {grant}\n"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits_eighty_columns_and_names_the_remedy() {
        let e = Examination {
            tiers: vec![vec![0], vec![1]],
            items: vec![Item {
                subject: "damon".into(),
                ok: false,
                text: "word ".repeat(60),
                command: Some("sudo something".into()),
            }],
            manages: false,
            grant: None,
        };
        for columns in [50, 80, 120] {
            let text = e.text(columns);
            assert!(text.lines().all(|l| l.chars().count() <= columns), "{text}");
            assert!(text.contains("try: sudo something"));
        }
        let all = Examination { grant: Some("sudo all && sudo more".into()), ..e };
        let text = all.text(80);
        assert!(text.ends_with("\n  sudo all && sudo more\n"), "{text}");
        assert_eq!(text.matches("sudo").count(), 2, "said once: {text}");
    }

    #[test]
    fn gpus_are_listed_or_the_reason_is_given() {
        let item = gpus(Err(CudaError::NoDevice));
        assert!(!item.ok && item.text.starts_with("no CUDA: the driver shows no GPU"), "{item:?}");
        assert!(gpus_note().contains("CUDA"));
    }

    #[test]
    fn this_machine_can_be_examined() {
        let e = examine();
        assert!(e.items.iter().any(|i| i.subject == "GPU memory"));
        assert!(!e.items.is_empty());
        assert!(e.items.iter().all(|i| !i.text.is_empty()));
    }
}

//! Runs each target unmanaged and managed, and the tool under faults, and compares.

use crate::checks::{alike, output, spawn, wait_for, CaseVerdict, SummaryFile};
use crate::memory::{ENOUGH, MOVING, TOLD};
use crate::{kills, refusals, trouble};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

/// One case: its name and what it does.
struct Case {
    name: &'static str,
    body: fn(&CaseBench) -> CaseVerdict,
}

const HYPLACER: &[&str] = &["--policy", "hyplacer"];
/// Pages that were to be moved are not there any more.
const VANISHED: &[&str] = &["gone", "not_present"];

const CASES: &[Case] = &[
    Case { name: "steady-same-output", body: |b| b.moves("steady", &["--policy", "terrace"], &[]) },
    Case { name: "steady-hyplacer", body: |b| b.moves("steady", HYPLACER, &[]) },
    Case { name: "steady-damon", body: |b| b.moves_seen_by("damon", &["damon", "soft-dirty"]) },
    Case { name: "steady-soft-dirty", body: |b| b.moves_seen_by("soft-dirty", &["soft-dirty"]) },
    Case { name: "exits-while-moved", body: |b| b.moves("exit", HYPLACER, VANISHED) },
    Case { name: "exec-while-moved", body: |b| b.moves("exec", HYPLACER, VANISHED) },
    Case { name: "fork-while-moved", body: |b| b.moves("fork", HYPLACER, &["shared"]) },
    Case { name: "unmap-and-remap", body: |b| b.moves("unmap", HYPLACER, VANISHED) },
    Case { name: "huge-pages", body: |b| b.moves("huge", HYPLACER, &[]) },
    Case { name: "kinds-of-pages", body: trouble::kinds },
    Case {
        name: "status-passes-through",
        body: |b| b.same("status", &["--policy", "terrace"]).map(drop),
    },
    Case { name: "signal-passes-through", body: kills::signal_passes },
    Case { name: "command-not-found-is-127", body: refusals::not_found },
    Case { name: "access-count-refused", body: refusals::cells },
    Case { name: "other-user-refused", body: refusals::other_user },
    Case { name: "no-privilege-says-why", body: refusals::unprivileged },
    Case { name: "no-tracker-says-why", body: refusals::untrackable },
    Case { name: "no-moves-says-why", body: refusals::immovable },
    Case { name: "full-node", body: trouble::full_node },
    Case { name: "cpuset-forbids", body: trouble::cpuset_forbids },
    Case { name: "killed-mid-move", body: kills::killed },
    Case { name: "killed-with-damon", body: kills::killed_with_damon },
    Case { name: "interrupted", body: kills::interrupted },
    Case { name: "journal-disk-full", body: trouble::journal_refused },
    Case { name: "journal-disk-fills", body: trouble::journal_cut_off },
    Case { name: "damaged-machine-file", body: refusals::damaged_machine },
];

/// The kernel's own moves, of which a target could not tell ours.
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";

/// Names of all cases.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|c| c.name)
}

/// Runs the cases named (all when none is); returns 1 if any failed.
pub fn drive(terrace: &str, only: &[&str]) -> i32 {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("terrace-cases"));
    if let Err(e) = fs::write(BALANCING, "0") {
        eprintln!("{BALANCING}: {e}");
    }
    let mut failed = 0;
    for case in CASES.iter().filter(|c| only.is_empty() || only.contains(&c.name)) {
        let verdict =
            CaseBench::new(terrace, &own, case.name).and_then(|bench| (case.body)(&bench));
        match verdict {
            Ok(()) => println!("ok {}", case.name),
            Err(why) if why.starts_with("skipped: ") => {
                println!("skipped {}: {}", case.name, &why[9..]);
            }
            Err(why) => {
                failed += 1;
                println!("FAILED {}: {}", case.name, why.replace('\n', " | "));
            }
        }
    }
    i32::from(failed > 0)
}

/// What a case works with: the programs, and a folder of its own.
pub struct CaseBench {
    pub terrace: PathBuf,
    own: PathBuf,
    dir: PathBuf,
}

/// As long as the target and the tool have for what they are waited for; guest time.
const PATIENCE: Duration = Duration::from_secs(20);

impl CaseBench {
    fn new(terrace: &str, own: &Path, case: &str) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("terrace-case-{case}"));
        let reported = dir.join("told");
        // Targets of any user tell there what they see.
        let made = fs::create_dir_all(&reported)
            .and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)))
            .and_then(|()| fs::set_permissions(&reported, fs::Permissions::from_mode(0o777)));
        made.map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Self { terrace: PathBuf::from(terrace), own: own.to_owned(), dir })
    }

    /// A file of this case.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn report_folder(&self) -> PathBuf {
        self.file("told")
    }

    pub fn summary(&self) -> PathBuf {
        self.file("summary.json")
    }

    /// The target, unmanaged.
    pub fn target(&self, mode: &str) -> Command {
        let mut c = Command::new(&self.own);
        c.args(["target", mode]);
        c
    }

    /// The target, which waits for its pages to be moved.
    pub fn watched(&self, mode: &str) -> Command {
        let mut c = self.target(mode);
        c.env(TOLD, self.report_folder());
        c
    }

    /// The target under `terrace run`; it waits for its pages to be moved.
    pub fn managed(&self, options: &[&str], mode: &str) -> Command {
        self.managed_by(&self.terrace, options, mode)
    }

    /// The same under another copy of the tool.
    pub fn managed_by(&self, terrace: &Path, options: &[&str], mode: &str) -> Command {
        let mut c = Command::new(terrace);
        c.arg("run").arg("--summary").arg(self.summary()).args(options);
        c.arg("--").arg(&self.own).args(["target", mode]).env(TOLD, self.report_folder());
        c
    }

    /// Unmanaged and managed runs print the same and end alike, and the latter really was managed.
    pub fn same(&self, mode: &str, options: &[&str]) -> Result<(Output, SummaryFile), String> {
        let plain = output(&mut self.target(mode))?;
        let managed = output(&mut self.managed(options, mode))?;
        alike(&plain, &managed)?;
        let account = SummaryFile::read(&self.summary())?;
        account.managed()?;
        eprintln!("{mode}: {}", account.shown());
        crate::checks::one_line(&managed, " pages promoted, ")?;
        Ok((managed, account))
    }

    /// [`CaseBench::same`], while pages are moved; where `reasons` are given some could not be, for
    /// one of these.
    fn moves(&self, mode: &str, options: &[&str], reasons: &[&str]) -> CaseVerdict {
        self.same(mode, options)?.1.moved_but_for(reasons)
    }

    /// The same with trackers that are not the first choice.
    fn moves_seen_by(&self, choice: &str, names: &[&str]) -> CaseVerdict {
        let account = self.same("steady", &["--policy", "hyplacer", "--tracker", choice])?.1;
        if account.trackers() != names {
            return Err(format!("trackers {:?}, not {names:?}", account.trackers()));
        }
        account.moved_but_for(&[])
    }

    /// Waits until the target says that its pages have begun to move.
    pub fn wait_moving(&self, tool: &mut Child) -> CaseVerdict {
        let seen = self.report_folder().join(MOVING);
        wait_for("pages of the target move", PATIENCE, || {
            seen.exists() || matches!(tool.try_wait(), Ok(Some(_)))
        })?;
        match tool.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(format!("the tool ended before: {ended:?}")),
        }
    }

    /// A target that works until [`TargetProcess::let_go`].
    pub fn hold(&self) -> Result<TargetProcess, String> {
        spawn(&mut self.watched("held")).map(|child| TargetProcess {
            child: Some(child),
            enough: self.report_folder().join(ENOUGH),
        })
    }

    /// `terrace attach` to it.
    pub fn attach(&self, held: &TargetProcess, options: &[&str]) -> Command {
        let mut c = Command::new(&self.terrace);
        c.arg("attach")
            .args(options)
            .arg("--summary")
            .arg(self.summary())
            .args(["-p", &held.pid().to_string()]);
        c
    }
}

/// A target that works until it is let go; killed when that does not happen.
pub struct TargetProcess {
    child: Option<Child>,
    enough: PathBuf,
}

impl TargetProcess {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Lets it end; what it printed.
    pub fn let_go(mut self) -> Result<Output, String> {
        fs::write(&self.enough, "").map_err(|e| e.to_string())?;
        let child = self.child.take().ok_or("no target")?;
        child.wait_with_output().map_err(|e| e.to_string())
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}

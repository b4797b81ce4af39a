//! `run --alloc`: an unmodified program whose allocations go to arenas, as a plan says.

use crate::manage::{CommandStartError, FinishedRun, ManageError};
use crate::output::RunSummary;
use crate::parts::{self, InstalledPart};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use terrace_alloc::arena::plan::{ArenaPlan, PLAN_LIMIT};
use terrace_sys::{zones, Root, Runner};

/// Reads a plan and holds it against this machine's nodes.
///
/// # Errors
/// [`ManageError::Usage`]: the file, or a line of it; [`ManageError::Lacking`]: a node that is not
/// here.
pub fn check(path: &Path) -> Result<ArenaPlan, ManageError> {
    use std::io::Read as _;
    let reported = |why: String| ManageError::Usage(format!("plan {}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| reported(e.to_string()))?;
    let mut bytes = Vec::new();
    file.take(PLAN_LIMIT as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| reported(e.to_string()))?;
    let plan = ArenaPlan::parse(&bytes).map_err(|e| reported(e.to_string()))?;
    plan.check(&zones::nodes_with_memory(&Root::live())).map_err(|(arena, e)| {
        ManageError::Lacking(format!("plan {}: arena {arena}: {e}", path.display()))
    })?;
    Ok(plan)
}

fn absolute(path: &Path) -> Result<PathBuf, ManageError> {
    std::path::absolute(path).map_err(|e| ManageError::Usage(format!("{}: {e}", path.display())))
}

/// `LD_PRELOAD` with a library of ours before what is in it.
pub(crate) fn preload(part: InstalledPart) -> Result<OsString, ManageError> {
    let found = part.find().map_err(|e| ManageError::Lacking(e.to_string()))?;
    let mut preload = absolute(&found)?.into_os_string();
    // ld.so separates by colons and by spaces, and knows no quotes.
    if preload.as_encoded_bytes().iter().any(|b| b": ".contains(b)) {
        let why =
            format!("{}: the path must hold no colon and no space", preload.to_string_lossy());
        return Err(ManageError::Usage(why));
    }
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|b| !b.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    Ok(preload)
}

/// What the command's environment needs.
fn environment(plan: &Path) -> Result<Vec<(&'static str, OsString)>, ManageError> {
    check(plan)?;
    let preload = preload(parts::PRELOAD)?;
    Ok(vec![("LD_PRELOAD", preload), ("TERRACE_ALLOC", absolute(plan)?.into_os_string())])
}

/// Runs a command with its allocations placed as `plan` says; no policy moves its pages.
///
/// # Errors
/// [`CommandStartError`]: the plan is wrong or this machine lacks what it names, or the command
/// cannot be started.
pub fn run(plan: &Path, argv: &[OsString]) -> Result<FinishedRun, CommandStartError> {
    let environment = environment(plan).map_err(CommandStartError::Before)?;
    let mut runner = Runner::start_with(argv, &environment).map_err(CommandStartError::Start)?;
    let ended = runner.wait_to_end();
    let why = format!("its allocations went where {} says", plan.display());
    Ok(FinishedRun { summary: RunSummary::unmanaged("none", why), ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_cannot_be_followed_says_why() {
        let folder = std::env::temp_dir().join(format!("terrace-plan-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("plan");
        let said = |text: &str| {
            std::fs::write(&file, text).unwrap();
            check(&file).map(|p| p.arenas.len()).map_err(|e| e.to_string())
        };
        assert_eq!(said("arena a only 0\nsize 1M.. a\n"), Ok(1));
        assert!(said("arena a only 999\n").unwrap_err().contains("arena a: node 999"));
        assert!(said("arena a\nput\n").unwrap_err().contains("line 2"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(check(&file), Err(ManageError::Usage(_))));
    }
}

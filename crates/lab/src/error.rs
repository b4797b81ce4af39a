//! What can go wrong in the lab, by situation.

use crate::wire::WireError;
use std::path::PathBuf;

/// A failure of the lab; the message is one line: what, on which target, why, what to try.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A part of the lab is not there.
    #[error("the lab in {dir} lacks {what}: {hint}")]
    NotSetUp {
        /// The lab's directory.
        dir: PathBuf,
        /// What is missing.
        what: &'static str,
        /// What to do about it.
        hint: String,
    },
    /// The machine file describes something the virtual machine cannot be.
    #[error("machine {name} cannot be built in the lab: {why}")]
    Machine {
        /// The machine's name.
        name: String,
        /// Which property, and why not.
        why: String,
    },
    /// A file or directory could not be used.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The virtual machine ended without an answer.
    #[error("the virtual machine ended early ({status}): {last_words}")]
    MachineDied {
        /// Exit status of QEMU.
        status: String,
        /// Last lines of its standard error and console.
        last_words: String,
    },
    /// The virtual machine took longer than allowed (wall-clock).
    #[error("{what} took longer than {seconds} s: {last_words}")]
    TooSlow {
        /// What was waited for.
        what: &'static str,
        /// Seconds waited.
        seconds: u64,
        /// Last lines of its standard error and console.
        last_words: String,
    },
    /// QEMU's monitor refused or broke off.
    #[error("QEMU's monitor: {command}: {why}")]
    Monitor {
        /// Command that failed.
        command: String,
        /// QEMU's answer.
        why: String,
    },
    /// What the guest left in the mailbox cannot be read.
    #[error("the guest's answer cannot be read: {0}")]
    Mailbox(#[from] WireError),
    /// The job is larger than the mailbox.
    #[error(
        "the files for the guest have {job_bytes} bytes or more, and the lab carries \
         {room_bytes}; give it fewer or smaller ones"
    )]
    JobTooLarge {
        /// Size of the job's archive, or of its first files that are too many.
        job_bytes: u64,
        /// Space in the mailbox.
        room_bytes: u64,
    },
    /// More files than an archive may have.
    #[error("more than {most} files for the guest; give it fewer with --dir")]
    TooManyFiles {
        /// How many there may be.
        most: usize,
    },
    /// Somebody asked to end.
    #[error("interrupted")]
    Interrupted,
    /// The guest did not start the command.
    #[error("the guest did not run the command: {why}")]
    NotRun {
        /// The guest's reason.
        why: String,
    },
    /// The command ended in a way that makes its figures worthless.
    #[error("{policy}: the workload {how}: {stderr}")]
    WorkloadFailed {
        /// Policy under which it ran.
        policy: String,
        /// "exited with status 3" and the like.
        how: String,
        /// End of its standard error.
        stderr: String,
    },
    /// A policy acts by a profile of the workload's marked phase, which did not end.
    #[error(
        "{policy}: acts by a profile of the workload's marked phase, and the one that it began \
         did not end; end it before the program ends (lab/README.md)"
    )]
    Unmarked {
        /// The policy.
        policy: String,
    },
    /// A program cannot be carried into the guest.
    #[error("{program}: {why}")]
    Program {
        /// The program.
        program: String,
        /// Why not.
        why: String,
    },
    /// The emulated machine does not read what its machine file says.
    #[error(
        "calibration of {machine}: {figure} of node {node} should be {wanted:.1}, is {got:.1} \
            (off by {off_percent:.1}%, \
         allowed {allowed_percent}%); no results are reported"
    )]
    Calibration {
        /// The machine.
        machine: String,
        /// The node.
        node: u32,
        /// Which figure, with unit.
        figure: &'static str,
        /// From the machine file.
        wanted: f64,
        /// Measured in the guest.
        got: f64,
        /// Deviation.
        off_percent: f64,
        /// Allowed deviation.
        allowed_percent: f64,
    },
    /// A policy that the lab does not know.
    #[error("the lab knows no policy '{name}'; it knows {known}")]
    UnknownPolicy {
        /// What was asked.
        name: String,
        /// What there is.
        known: String,
    },
    /// Statistics of the timing plugin cannot be read.
    #[error("statistics of the timing plugin ({path}): {why}", path = path.display())]
    Stats {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Result of the lab's functions.
pub type Result<T> = std::result::Result<T, LabError>;

/// `map_err` helper: name the attempt and the file.
pub(crate) fn io(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> LabError {
    let path = path.into();
    move |source| LabError::Io { action, path, source }
}

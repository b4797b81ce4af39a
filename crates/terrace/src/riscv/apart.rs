//! One element of a run whose others are in other processes, on this host or on others: the part
//! that shared memory and MPI have in common, and elements as the ranks of an MPI job.

use super::elements::{prepare, write_back, ElementOptions, ElementsRun, PreparedElements};
use super::{RiscvError, RiscvProgram};
use std::time::Instant;
use terrace_xbgas::element::DistributedElement;
use terrace_xbgas::transport::ElementTransport;

/// Runs the element at this end of a transport. Where it cannot start, the others learn why.
pub(super) fn run_apart<T: ElementTransport>(
    program: &RiscvProgram,
    options: &ElementOptions,
    mut transport: T,
) -> Result<ElementsRun, RiscvError> {
    let (own, count) = (transport.element(), transport.elements());
    let options = ElementOptions { count, ..options.clone() };
    let PreparedElements { mut processes, mut setup, .. } =
        match prepare(program, &options, own..own + 1) {
            Ok(prepared) => prepared,
            Err(error) => {
                transport.end_others(1, Some(format!("element {own}: {error}")));
                return Err(error);
            }
        };
    for file in setup.files.iter_mut().filter(|file| file.element != own) {
        file.bytes = Vec::new();
    }
    let started = Instant::now();
    let mut element = DistributedElement::new(processes.remove(0), &setup, transport);
    let run = element.run()?;
    let elapsed_s = started.elapsed().as_secs_f64();
    if own == 0 {
        write_back(|file| element.file_bytes(file), &options.objects)?;
    }
    Ok(ElementsRun { end: run.end, elements: run.statistics, elapsed_s, recorded: None })
}

/// What a rank of an MPI job ran.
#[derive(Debug)]
pub struct RankRun {
    /// The rank, which is the element.
    pub element: u32,
    /// How its run ended; rank 0 knows it of all.
    pub run: Result<ElementsRun, RiscvError>,
}

/// Runs this rank's element, in a process that `mpirun` started; `asked`: how many elements there
/// are to be, where that is not what `mpirun` says.
///
/// # Errors
/// [`RiscvError::NoMpi`] where terrace was built without MPI, [`RiscvError::System`] where MPI does
/// not start, [`RiscvError::Ranks`].
#[cfg(feature = "mpi")]
pub fn run_rank(
    program: &RiscvProgram,
    options: &ElementOptions,
    asked: Option<u32>,
) -> Result<RankRun, RiscvError> {
    let world = terrace_sys::MpiWorld::start()?;
    let (element, ranks) = (world.rank(), world.size());
    let run = match asked {
        Some(asked) if asked != ranks => Err(RiscvError::Ranks { asked, ranks }),
        _ => run_apart(program, options, terrace_xbgas::transport::MpiTransport(world)),
    };
    Ok(RankRun { element, run })
}

/// Runs this rank's element, in a process that `mpirun` started; `asked`: how many elements there
/// are to be, where that is not what `mpirun` says.
///
/// # Errors
/// [`RiscvError::NoMpi`]: terrace was built without MPI.
#[cfg(not(feature = "mpi"))]
pub fn run_rank(
    _: &RiscvProgram,
    _: &ElementOptions,
    _: Option<u32>,
) -> Result<RankRun, RiscvError> {
    Err(RiscvError::NoMpi)
}

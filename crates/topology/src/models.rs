//! Which known machine this is: processors and drivers that tell what memory without CPUs is made
//! of, where firmware does not.

use crate::error::TopologyError;
use crate::tree::View;
use crate::tree::CPUS;
use terrace_machine::KnownModels;
use terrace_types::CpuId;

/// PCI devices that NVIDIA's driver has taken.
pub(crate) const NVIDIA: &str = "sys/bus/pci/drivers/nvidia";
/// The register that names an Arm core (`Documentation/ABI/testing/sysfs-devices-system-cpu`).
pub(crate) const MIDR: &str = "regs/identification/midr_el1";

/// Intel's models 87 (Knights Landing) and 133 (Knights Mill) of family 6
/// (`arch/x86/include/asm/intel-family.h`), as `print_cpu_modalias` of
/// `arch/x86/kernel/cpu/match.c` writes them.
const KNIGHTS: [&str; 2] = ["ven0000fam0006mod0057", "ven0000fam0006mod0085"];

/// Looks for the machines that are known.
pub(crate) fn models(view: &View<'_>, cpus: &[CpuId]) -> Result<KnownModels, TopologyError> {
    let alias = view.text(&format!("{CPUS}/modalias"))?.unwrap_or_default();
    // The list of processors of a large machine is longer than any file that is read: no answer.
    let info = match view.text("proc/cpuinfo") {
        Err(TopologyError::TooLarge { .. }) => None,
        other => other?,
    };
    let info = info.unwrap_or_default();
    let nvidia = view.list(NVIDIA)?.iter().any(|name| name.contains(':'));
    let grace = match cpus.first() {
        Some(cpu) => view.text(&format!("{CPUS}/cpu{cpu}/{MIDR}"))?.is_some_and(|m| is_grace(&m)),
        None => false,
    };
    Ok(KnownModels {
        knights_landing: KNIGHTS.iter().any(|model| alias.contains(model)) || is_knights(&info),
        grace_hopper: grace && nvidia,
        power9_with_gpus: nvidia && info.contains("POWER9") && info.contains("PowerNV"),
    })
}

/// The same as the model's name, from the first processor of cpuinfo.
fn is_knights(cpuinfo: &str) -> bool {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    value("vendor_id").as_deref() == Some("GenuineIntel")
        && value("cpu family").as_deref() == Some("6")
        && matches!(value("model").as_deref(), Some("87" | "133"))
}

/// Arm's Neoverse V2 (implementer 0x41, part 0xd4f: `arch/arm64/include/asm/cputype.h`), which
/// beside an NVIDIA GPU is Grace.
fn is_grace(midr: &str) -> bool {
    let digits = midr.trim().trim_start_matches("0x");
    let Ok(midr) = u64::from_str_radix(digits, 16) else { return false };
    (midr >> 24 & 0xff, midr >> 4 & 0xfff) == (0x41, 0xd4f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_number() {
        assert!(
            is_grace("0x00000000410fd4f0\n") && !is_grace("0x00000000410fd0c0") && !is_grace("")
        );
        let info = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 87\n";
        assert!(is_knights(info) && !is_knights(&info.replace("87", "85")) && !is_knights(""));
    }
}

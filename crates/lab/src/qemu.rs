//! QEMU's command line, generated from the shape of the machine. Pure.

use crate::shape::Shape;
use std::path::{Path, PathBuf};

/// Added to HMAT bandwidths' granularity: QEMU wants all of them to be multiples of one power of
/// two that makes the largest fit 16 bits.
const BANDWIDTH_STEP_MIB: u64 = 64;

/// The timing plugin and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginArgs {
    /// The shared object.
    pub path: PathBuf,
    /// `key=value` pairs, in order.
    pub args: Vec<(String, String)>,
}

/// Whether the machine boots or wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// From the kernel; memory goes to files that later starts read.
    Boot,
    /// From a saved state that the monitor names, with the memory files mapped privately (copy on
    /// write).
    Restore,
}

/// Everything that distinguishes one start of QEMU from another.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// The machine.
    pub shape: &'a Shape,
    /// Kernel image.
    pub kernel: &'a Path,
    /// Initramfs.
    pub initramfs: &'a Path,
    /// Directory with one file a node, holding the guest's memory.
    pub memory_dir: &'a Path,
    /// The mailbox file.
    pub mailbox: &'a Path,
    /// Its size.
    pub mailbox_bytes: u64,
    /// Where the guest's serial line goes.
    pub console: &'a Path,
    /// Unix socket for QEMU's monitor.
    pub monitor: &'a Path,
    /// Timing plugin; without it time is instructions only.
    pub plugin: Option<PluginArgs>,
    /// Boot or restore.
    pub start: Start,
}

/// File that holds the memory of a node.
#[must_use]
pub fn memory_file(dir: &Path, node: u32) -> PathBuf {
    dir.join(format!("node{node}.ram"))
}

/// The guest's kernel command line. `lpj` is what each processor would otherwise find by turning in
/// a loop, nine tenths of the time that booting took: a counter of 1 GHz over 250 ticks a second
/// (ADR 0190).
#[must_use]
pub fn kernel_command_line(shape: &Shape) -> String {
    format!(
        "console=ttyS0 quiet panic=-1 nokaslr mitigations=off norandmaps tsc=reliable \
            tsc_early_khz=1000000 \
         lpj=4000000 rdinit=/init terrace.slow={}",
        shape.slow
    )
}

/// The arguments after the program's name.
#[must_use]
pub fn arguments(launch: &Launch<'_>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut push = |words: &[&str]| out.extend(words.iter().map(|w| (*w).to_string()));
    let shape = launch.shape;
    push(&["-machine", "q35,hmat=on,accel=tcg", "-cpu", "qemu64,-rdrand,-rdseed"]);
    push(&["-smp", &shape.vcpus.to_string(), "-m", &format!("{}M", shape.total_bytes() >> 20)]);
    push(&["-nodefaults", "-no-user-config", "-display", "none"]);
    // A guest that powers off or panics leaves a paused machine, whose mailbox can still be read.
    push(&["-action", "reboot=shutdown,shutdown=pause"]);
    push(&["-serial", &format!("file:{}", escape(launch.console))]);
    push(&["-seed", "1", "-rtc", "base=2026-01-01,clock=vm"]);
    // Time is counted in instructions; `sleep=off` lets idle guest time pass at once.
    push(&["-icount", "shift=0,sleep=off,align=off"]);
    push(&[
        "-kernel",
        &launch.kernel.to_string_lossy(),
        "-initrd",
        &launch.initramfs.to_string_lossy(),
    ]);
    push(&["-append", &kernel_command_line(shape)]);
    out.extend(memory_arguments(launch));
    out.extend(hmat_arguments(shape));
    let mut push = |words: &[&str]| out.extend(words.iter().map(|w| (*w).to_string()));
    let mailbox = escape(launch.mailbox);
    let share = share(launch.start);
    let object = format!(
        "memory-backend-file,id=mailbox,share={share},size={},mem-path={mailbox}",
        launch.mailbox_bytes
    );
    push(&["-object", &object, "-device", "ivshmem-plain,memdev=mailbox,master=on"]);
    push(&["-qmp", &format!("unix:{},server=on,wait=off", escape(launch.monitor))]);
    if let Some(plugin) = &launch.plugin {
        let args: String =
            plugin.args.iter().map(|(k, v)| format!(",{k}={}", v.replace(',', ",,"))).collect();
        push(&["-plugin", &format!("{}{args}", escape(&plugin.path))]);
    }
    if launch.start == Start::Restore {
        push(&["-incoming", "defer"]);
    }
    out
}

/// While booting, memory lives in its files; an awakened machine maps them copy on write, the
/// mailbox included (QEMU refuses to leave a shared PCI BAR out of a saved state: its address is
/// not known yet when that is read).
fn share(start: Start) -> &'static str {
    match start {
        Start::Boot => "on",
        Start::Restore => "off",
    }
}

fn memory_arguments(launch: &Launch<'_>) -> Vec<String> {
    let share = share(launch.start);
    let mut out = Vec::new();
    for node in &launch.shape.nodes {
        let file = memory_file(launch.memory_dir, node.id);
        out.push("-object".into());
        out.push(format!(
            "memory-backend-file,id=node{},share={share},size={},mem-path={}",
            node.id,
            node.bytes,
            escape(&file)
        ));
        let cpus: String = match (node.cpus.first(), node.cpus.last()) {
            (Some(a), Some(b)) if a == b => format!(",cpus={a}"),
            (Some(a), Some(b)) => format!(",cpus={a}-{b}"),
            _ => String::new(),
        };
        out.push("-numa".into());
        out.push(format!(
            "node,nodeid={0},memdev=node{0}{cpus},initiator={1}",
            node.id, node.initiator
        ));
    }
    out
}

fn hmat_arguments(shape: &Shape) -> Vec<String> {
    let mut out = Vec::new();
    let mut numa = |text: String| out.extend(["-numa".to_string(), text]);
    for (src, row) in shape.distances.iter().enumerate() {
        for (dst, val) in row.iter().enumerate().filter(|(dst, _)| *dst != src) {
            numa(format!("dist,src={src},dst={dst},val={val}"));
        }
    }
    for l in &shape.links {
        let head =
            format!("hmat-lb,initiator={},target={},hierarchy=memory", l.initiator, l.target);
        for (kind, ns) in [("read", l.read_latency_ns), ("write", l.write_latency_ns)] {
            numa(format!("{head},data-type={kind}-latency,latency={}", ns.max(1)));
        }
        for (kind, rate) in [("read", l.read_bandwidth), ("write", l.write_bandwidth)] {
            let mib = ((rate >> 20) / BANDWIDTH_STEP_MIB).max(1) * BANDWIDTH_STEP_MIB;
            numa(format!("{head},data-type={kind}-bandwidth,bandwidth={mib}M"));
        }
    }
    out
}

/// QEMU's option syntax doubles commas.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &str, start: Start) -> String {
        let shape = Shape::from_machine(&terrace_machine::preset(machine).unwrap(), None).unwrap();
        let p = Path::new;
        let launch = Launch {
            shape: &shape,
            kernel: p("/lab/vmlinuz"),
            initramfs: p("/lab/i.cpio"),
            memory_dir: p("/lab/m"),
            mailbox: p("/lab/a,b"),
            mailbox_bytes: 1 << 20,
            console: p("/lab/console"),
            monitor: p("/lab/qmp"),
            plugin: Some(PluginArgs {
                path: "/lab/plugin.so".into(),
                args: vec![("stats".into(), "/x,y".into())],
            }),
            start,
        };
        arguments(&launch).join(" ")
    }

    #[test]
    fn the_machine_file_becomes_nodes_and_hmat() {
        let l = line("lab-cxl", Start::Boot);
        for part in [
            "-smp 2 -m 1216M",
            "memory-backend-file,id=node0,share=on,size=201326592,mem-path=/lab/m/node0.ram",
            "node,nodeid=0,memdev=node0,cpus=0-1,initiator=0",
            "node,nodeid=1,memdev=node1,initiator=0",
            "dist,src=0,dst=1,val=20",
            "dist,src=1,dst=0,val=20",
            "hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=read-latency,latency=300",
            "hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=read-bandwidth,bandwidth=95360M",
            "terrace.slow=1",
        ] {
            assert!(l.contains(part), "{part} is not in {l}");
        }
        assert!(!l.contains("-incoming"));
    }

    #[test]
    fn a_restored_machine_never_writes_the_saved_memory() {
        let l = line("lab-cxl", Start::Restore);
        assert!(l.contains("id=node0,share=off") && l.contains("id=node1,share=off"));
        assert!(l.contains("-incoming defer"));
        assert!(l.contains("id=mailbox,share=off"));
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        let l = line("lab-cxl", Start::Boot);
        assert!(l.contains("mem-path=/lab/a,,b"));
        assert!(l.contains("stats=/x,,y"));
    }

    #[test]
    fn hmat_bandwidths_share_a_step() {
        for name in ["lab-cxl", "lab-hbm", "lab-dcpmm", "lab-numa", "lab-pcie"] {
            let l = line(name, Start::Boot);
            for word in l.split([' ', ',']).filter_map(|w| w.strip_prefix("bandwidth=")) {
                let mib: u64 = word.trim_end_matches('M').parse().unwrap();
                assert!(
                    mib % BANDWIDTH_STEP_MIB == 0 && mib > 0 && mib / BANDWIDTH_STEP_MIB < 65_535
                );
            }
        }
    }
}

//! Saved machines: booted once for each combination of machine file, vCPUs, kernel, QEMU, plugin
//! and guest program, woken up for every job. The cache directory's name is a sum over all of
//! these, so a stale one is never used.

use crate::cpio::CpioWriter;
use crate::error::{io, LabError, Result};
use crate::monitor::Monitor;
use crate::qemu::{self, Launch, PluginArgs, Start};
use crate::scratch::{self, ScratchFolder};
use crate::shape::Shape;
use crate::stats;
use crate::stop::StopFlag;
use crate::vm::{read_header, MailboxFile, Vm};
use crate::wire::{self, MailboxState};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of the shared memory; the file is sparse, so unused space costs nothing.
pub const MAILBOX_BYTES: u64 = 256 << 20;
/// PCI vendor and device of the shared memory.
const IVSHMEM: (u64, u64) = (0x1af4, 0x1110);
const BOOT_LIMIT: Duration = Duration::from_secs(900);
/// The plugin's arguments while a machine boots: time goes by in long steps, and accesses to memory
/// take none of it. A kernel waits for its clocks by spinning (a fifth of a second for the local
/// APIC's timer alone), and the fewer instructions these take, the sooner they are emulated.
const BOOTING: [(&str, &str); 2] = [("instruction_ns", "4"), ("count_only", "on")];
/// Begins the name of a folder in which a machine is being made.
pub(crate) const BUILDING: &str = "building-";
const SAVE_LIMIT: Duration = Duration::from_secs(60);

/// The parts that a machine is built from.
#[derive(Debug, Clone)]
pub struct MachineParts {
    /// QEMU, or the wrapper that starts it.
    pub qemu: PathBuf,
    /// Kernel image.
    pub kernel: PathBuf,
    /// Timing plugin; `None` leaves time to the instruction count.
    pub plugin: Option<PathBuf>,
    /// The guest's init, static.
    pub guest: PathBuf,
}

/// What is known about a saved machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Meta {
    clock_ns: u64,
    mailbox_address: u64,
    boot_wall_seconds: f64,
}

/// A saved machine in the cache.
#[derive(Debug, Clone)]
pub struct MachineSnapshot {
    dir: PathBuf,
    meta: Meta,
}

impl MachineSnapshot {
    /// The saved machine for these parts, booted now if it is not there. `machine_text` is what the
    /// plugin reads.
    pub fn ensure(
        cache: &Path,
        parts: &MachineParts,
        shape: &Shape,
        machine_text: &str,
        stop: StopFlag,
    ) -> Result<Self> {
        let dir = cache.join(key(parts, shape, machine_text)?);
        if let Some(found) = Self::load(&dir) {
            return Ok(found);
        }
        fs::create_dir_all(cache).map_err(io("creating", cache))?;
        let building = ScratchFolder::create(cache, BUILDING)?;
        boot(building.path(), parts, shape, machine_text, stop)?;
        // Where this fails somebody else was faster, or an older, broken one is in the way.
        let _ = fs::rename(building.path(), &dir);
        drop(building);
        forget_old(cache, &dir);
        Self::load(&dir).ok_or_else(|| LabError::NotSetUp {
            dir: dir.clone(),
            what: "a usable saved machine",
            hint: "remove that directory and try again".into(),
        })
    }

    fn load(dir: &Path) -> Option<Self> {
        let meta: Meta = serde_json::from_slice(&fs::read(dir.join("meta.json")).ok()?).ok()?;
        let whole = dir.join("state").exists() && dir.join("machine.toml").exists();
        whole.then(|| MachineSnapshot { dir: dir.to_path_buf(), meta })
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Guest clock at which it was saved.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.meta.clock_ns
    }

    /// Wall-clock seconds that booting took when it was made.
    #[must_use]
    pub fn boot_wall_seconds(&self) -> f64 {
        self.meta.boot_wall_seconds
    }

    /// Arguments to wake it up with another mailbox, writing to `run`.
    #[must_use]
    pub fn restore_arguments(
        &self,
        parts: &MachineParts,
        shape: &Shape,
        mailbox: &MailboxFile,
        run: &Path,
        socket: &Path,
        extra: &[(String, String)],
    ) -> Vec<String> {
        let plugin = plugin_args(parts, &self.dir, run).map(|mut p| {
            p.args.push(("clock0".into(), self.meta.clock_ns.to_string()));
            p.args.extend(extra.iter().cloned());
            p
        });
        qemu::arguments(&Launch {
            shape,
            kernel: &parts.kernel,
            initramfs: &self.dir.join("initramfs.cpio"),
            memory_dir: &self.dir,
            mailbox: mailbox.path(),
            mailbox_bytes: mailbox.bytes(),
            console: &run.join("console"),
            monitor: socket,
            plugin,
            start: Start::Restore,
        })
    }

    /// Have a machine that was started with [`MachineSnapshot::restore_arguments`] continue from
    /// the saved state, wait until it has powered off, and copy what its mailbox then holds to
    /// `mailbox`.
    pub fn play(&self, vm: &mut Vm, socket: &Path, limit: Duration, mailbox: &Path) -> Result<()> {
        let stop = vm.stop();
        let step = || {
            let mut monitor = Monitor::connect(socket, SAVE_LIMIT, stop)?;
            monitor.wake(&self.dir.join("state"), SAVE_LIMIT)?;
            monitor.wait_event("SHUTDOWN", limit)?;
            let head = mailbox.with_extension("head");
            monitor.dump_memory(self.meta.mailbox_address, wire::HEADER_LEN as u64, &head)?;
            let archive = read_header(&head)?.len.min(wire::archive_capacity(MAILBOX_BYTES));
            monitor.dump_memory(
                self.meta.mailbox_address,
                wire::BODY_OFFSET as u64 + archive,
                mailbox,
            )?;
            // The connection may close before the answer comes; QEMU's exit status tells.
            let _ = monitor.command("quit", json!({}));
            Ok(())
        };
        step().map_err(|e| vm.explain("the job", limit, e))
    }
}

/// Saved machines of the same name that are kept: the newest, and a few that another version may be
/// using.
const KEPT: usize = 4;

/// Remove all but the newest [`KEPT`] saved machines that differ from `newest` only in the sum.
fn forget_old(cache: &Path, newest: &Path) {
    let prefix = |p: &Path| {
        p.file_name()
            .and_then(|n| n.to_str())
            .and_then(|n| n.rsplit_once('-'))
            .map(|(a, _)| a.to_string())
    };
    let Ok(entries) = fs::read_dir(cache) else { return };
    let mut same: Vec<_> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p != newest && prefix(p).is_some() && prefix(p) == prefix(newest))
        .filter_map(|p| Some((fs::metadata(p.join("meta.json")).ok()?.modified().ok()?, p)))
        .collect();
    same.sort();
    for (_, old) in same.iter().rev().skip(KEPT - 1) {
        // Best effort: one that cannot be removed only takes space.
        let _ = fs::remove_dir_all(old);
    }
}

fn plugin_args(parts: &MachineParts, snapshot: &Path, run: &Path) -> Option<PluginArgs> {
    let path = parts.plugin.clone()?;
    let args = vec![
        ("machine".to_string(), snapshot.join("machine.toml").display().to_string()),
        ("stats".to_string(), run.join("stats.json").display().to_string()),
    ];
    Some(PluginArgs { path, args })
}

/// Boot, wait until the guest polls, stop, save.
fn boot(
    dir: &Path,
    parts: &MachineParts,
    shape: &Shape,
    machine_text: &str,
    stop: StopFlag,
) -> Result<()> {
    let started = Instant::now();
    let write = |name: &str, data: &[u8]| {
        let path = dir.join(name);
        fs::write(&path, data).map_err(io("writing", path))
    };
    write("machine.toml", machine_text.as_bytes())?;
    write("initramfs.cpio", &initramfs(&parts.guest)?)?;
    let mailbox = MailboxFile::create(&dir.join("mailbox"), MAILBOX_BYTES)?;
    let (console, socket) = (dir.join("console"), Socket::below(dir));
    let plugin = plugin_args(parts, dir, dir).map(|mut p| {
        p.args.extend(BOOTING.map(|(key, value)| (key.to_string(), value.to_string())));
        p
    });
    let arguments = qemu::arguments(&Launch {
        shape,
        kernel: &parts.kernel,
        initramfs: &dir.join("initramfs.cpio"),
        memory_dir: dir,
        mailbox: mailbox.path(),
        mailbox_bytes: mailbox.bytes(),
        console: &console,
        monitor: socket.path(),
        plugin,
        start: Start::Boot,
    });
    let mut vm = Vm::start(&parts.qemu, &arguments, &dir.join("stderr"), &console, stop)?;
    vm.wait_until("booting the guest", BOOT_LIMIT, || {
        Ok(mailbox.header()?.state == MailboxState::Ready)
    })?;
    let mut monitor = Monitor::connect(socket.path(), SAVE_LIMIT, stop)?;
    let mailbox_address = monitor.bar_address(IVSHMEM.0, IVSHMEM.1, 2)?;
    monitor.save(&dir.join("state"), SAVE_LIMIT)?;
    // The connection may close before the answer comes; the exit status tells.
    let _ = monitor.command("quit", json!({}));
    vm.wait("ending the booted machine", BOOT_LIMIT)?;
    drop(socket);
    let _ = fs::remove_file(mailbox.path());
    let clock_ns = match &parts.plugin {
        Some(_) => stats::read(&dir.join("stats.json"))?.clock_ns,
        None => 0,
    };
    let meta =
        Meta { clock_ns, mailbox_address, boot_wall_seconds: started.elapsed().as_secs_f64() };
    let json = serde_json::to_vec(&meta).map_err(|e| wire::WireError::BadJson(e.to_string()))?;
    write("meta.json", &json)
}

fn initramfs(guest: &Path) -> Result<Vec<u8>> {
    let program = fs::read(guest).map_err(io("reading", guest))?;
    let mut cpio = CpioWriter::new();
    for dir in ["/dev", "/proc", "/sys", "/new"] {
        cpio.directory(dir, 0o755);
    }
    cpio.device("/dev/console", 0o600, 5, 1);
    cpio.file("/init", 0o755, &program);
    Ok(cpio.finish())
}

/// Longest path of a Unix socket, with its end: `sun_path` (unix(7)).
const MAX_SOCKET_PATH: usize = 108;

/// A monitor's socket, gone when this is dropped.
pub(crate) struct Socket(PathBuf);

impl Socket {
    /// A path in this folder, which ends with it; where its name is too long for a socket, among
    /// the temporary files.
    pub(crate) fn below(folder: &Path) -> Self {
        let path = folder.join("qmp");
        if path.as_os_str().len() < MAX_SOCKET_PATH {
            return Socket(path);
        }
        let name = format!("terrace-{}-{}.qmp", std::process::id(), scratch::unique());
        Socket(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Sum over everything that the saved state depends on.
fn key(parts: &MachineParts, shape: &Shape, machine_text: &str) -> Result<String> {
    let mut all = Vec::new();
    let mut add = |bytes: &[u8]| {
        all.extend_from_slice(&wire::checksum(bytes).to_le_bytes());
        all.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    };
    add(machine_text.as_bytes());
    add(format!("{shape:?} {MAILBOX_BYTES} {}", qemu::kernel_command_line(shape)).as_bytes());
    for path in [Some(&parts.qemu), Some(&parts.kernel), parts.plugin.as_ref(), Some(&parts.guest)]
    {
        match path {
            Some(path) => add(&fs::read(path).map_err(io("reading", path))?),
            None => add(b"none"),
        }
    }
    let version = std::process::Command::new(&parts.qemu).arg("--version").output();
    add(&version.map_err(io("starting", &parts.qemu))?.stdout);
    Ok(format!("{}-{}cpu-{:016x}", safe_name(&shape.name), shape.vcpus, wire::checksum(&all)))
}

fn safe_name(name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    clean.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_are_tame() {
        assert_eq!(safe_name("../x y"), "___x_y");
        assert_eq!(safe_name(&"a".repeat(99)).len(), 32);
    }

    #[test]
    fn only_the_newest_machines_of_a_name_are_kept() {
        let cache = std::env::temp_dir().join(format!("terrace-old-{}", std::process::id()));
        let _ = fs::remove_dir_all(&cache);
        let names: Vec<String> = (0..6).map(|i| format!("lab-cxl-2cpu-{i}")).collect();
        for name in names.iter().map(String::as_str).chain(["lab-cxl-1cpu-0", "building-7-0"]) {
            fs::create_dir_all(cache.join(name)).unwrap();
            fs::write(cache.join(name).join("meta.json"), "{}").unwrap();
        }
        forget_old(&cache, &cache.join(&names[0]));
        let left = fs::read_dir(&cache).unwrap().count();
        assert_eq!(left, KEPT + 2);
        assert!(cache.join(&names[0]).exists() && cache.join("lab-cxl-1cpu-0").exists());
        let _ = fs::remove_dir_all(cache);
    }

    #[test]
    fn broken_snapshots_are_not_loaded() {
        let dir = std::env::temp_dir().join(format!("terrace-snap-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert!(MachineSnapshot::load(&dir).is_none());
        fs::write(
            dir.join("meta.json"),
            "{\"clock_ns\":1,\"mailbox_address\":2,\"boot_wall_seconds\":2.0}",
        )
        .unwrap();
        assert!(MachineSnapshot::load(&dir).is_none());
        fs::write(dir.join("state"), "").unwrap();
        fs::write(dir.join("machine.toml"), "").unwrap();
        assert_eq!(MachineSnapshot::load(&dir).map(|s| s.clock_ns()), Some(1));
        fs::write(dir.join("meta.json"), "{").unwrap();
        assert!(MachineSnapshot::load(&dir).is_none());
        let _ = fs::remove_dir_all(dir);
    }
}

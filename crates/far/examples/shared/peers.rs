//! What measurements beside the kernel's swap need: a memory cgroup, swap, and that both are gone
//! afterwards.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Something to undo, undone last first.
#[derive(Default)]
pub struct Undo(pub Vec<Vec<String>>);

impl Drop for Undo {
    fn drop(&mut self) {
        for words in self.0.iter().rev() {
            if let Err(error) = sh(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
                eprintln!("not undone: {error}");
            }
        }
    }
}

/// Runs a command; its output, or what it says of why not.
pub fn sh(words: &[&str]) -> Result<String, String> {
    let out = Command::new(words[0])
        .args(&words[1..])
        .output()
        .map_err(|e| format!("{}: {e}", words[0]))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&out.stderr);
    Err(format!("{}: {}, {}", words.join(" "), out.status, why.trim()))
}

/// Writes a setting.
pub fn write(path: &str, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{path}: {e}"))
}

/// A memory cgroup with a limit; as an error, why there is none.
pub fn group(at: &str, limit: u64, undo: &mut Undo) -> Result<(), String> {
    std::fs::create_dir(at).map_err(|e| format!("{at}: {e} (memory cgroup v1, root)"))?;
    undo.0.push(vec!["rmdir".into(), at.into()]);
    write(&format!("{at}/memory.limit_in_bytes"), &limit.to_string())
}

/// Swap of one kind (`file`, `zram`, or none), as long as the value lives.
pub fn swap(kind: &str, folder: &Path, mib: u64) -> Result<Undo, String> {
    let mut undo = Undo::default();
    match kind {
        "file" => {
            let path = folder
                .join(format!("terrace-swap-{}", std::process::id()))
                .to_string_lossy()
                .into_owned();
            undo.0.push(vec!["rm".into(), "-f".into(), path.clone()]);
            sh(&["dd", "if=/dev/zero", &format!("of={path}"), "bs=1M", &format!("count={mib}")])?;
            sh(&["chmod", "600", &path])?;
            sh(&["mkswap", &path])?;
            sh(&["swapon", &path])?;
            undo.0.push(vec!["swapoff".into(), path]);
        }
        "zram" => {
            let disk = "/sys/block/zram0";
            if std::fs::read_to_string(format!("{disk}/disksize"))
                .map_err(|e| e.to_string())?
                .trim()
                != "0"
            {
                return Err("zram0 is in use".to_owned());
            }
            undo.0.push(vec!["sh".into(), "-c".into(), format!("echo 1 > {disk}/reset")]);
            write(&format!("{disk}/comp_algorithm"), "lz4")?;
            write(&format!("{disk}/disksize"), &(mib << 20).to_string())?;
            sh(&["mkswap", "/dev/zram0"])?;
            sh(&["swapon", "/dev/zram0"])?;
            undo.0.push(vec!["swapoff".into(), "/dev/zram0".into()]);
        }
        _ => {}
    }
    Ok(undo)
}

/// Runs this program anew for one measurement, in a cgroup or not, and reads the line that it
/// prints. Who takes longer than `limit` seconds is ended. It stays in this process group, so that
/// a signal to that ends it too.
pub fn measure(group: Option<&str>, limit: u64, args: &[&str]) -> Result<Value, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?.to_string_lossy().into_owned();
    let enter = group.map_or(String::new(), |group| format!("echo $$ > {group}/cgroup.procs && "));
    let line = format!("{enter}exec timeout --foreground -k 5 {limit} \"$0\" \"$@\"");
    let mut words = vec!["sh", "-c", &line, &me];
    words.extend(args);
    let reported = sh(&words)?;
    serde_json::from_str(&reported).map_err(|e| format!("{reported}: {e}"))
}

/// The value in the middle.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The load of the last minute.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

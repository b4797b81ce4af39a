//! Writer of the initramfs: a cpio archive in the "newc" format, the one the kernel unpacks at
//! boot.

/// Builds a newc archive of directories and files owned by root.
#[derive(Debug, Default)]
pub struct CpioWriter {
    bytes: Vec<u8>,
    inode: u32,
}

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFCHR: u32 = 0o020_000;

impl CpioWriter {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a directory.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.entry(path, S_IFDIR | mode, (0, 0), &[]);
    }

    /// Add a regular file.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entry(path, S_IFREG | mode, (0, 0), data);
    }

    /// Add a character device.
    pub fn device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        self.entry(path, S_IFCHR | mode, (major, minor), &[]);
    }

    /// The finished archive, trailer included.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.record("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.inode += 1;
        self.record(path.trim_start_matches('/'), mode, device, data);
    }

    fn record(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        let links = if mode & S_IFDIR == S_IFDIR { 2 } else { 1 };
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let fields: [u32; 13] = [
            self.inode,
            mode,
            0, // uid
            0, // gid
            links,
            0, // mtime: fixed, so that equal contents give equal archives
            size,
            0, // major and minor of the device that holds the file
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0, // checksum, unused in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(&data[..size as usize]);
        self.pad();
    }

    fn pad(&mut self) {
        while self.bytes.len() % 4 != 0 {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_one_file() {
        let mut w = CpioWriter::new();
        w.file("/init", 0o755, b"hello");
        let bytes = w.finish();
        assert_eq!(&bytes[0..6], b"070701");
        assert_eq!(&bytes[14..22], b"000081ed");
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[94..102], b"00000005");
        assert_eq!(&bytes[110..116], b"init\0\0".get(..6).unwrap());
        // Head 110 + name 5 are padded to 116; the file's 5 bytes are padded to 8.
        assert_eq!(&bytes[116..121], b"hello");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
    }

    #[test]
    fn equal_contents_give_equal_bytes() {
        let build = || {
            let mut w = CpioWriter::new();
            w.directory("/dev", 0o755);
            w.device("/dev/console", 0o600, 5, 1);
            w.finish()
        };
        assert_eq!(build(), build());
    }

    /// The reference reader, where the machine has it.
    #[test]
    fn cpio_program_lists_it() {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let Ok(mut child) = Command::new("cpio")
            .args(["-t", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
        else {
            println!("skipped: no cpio program here");
            return;
        };
        let mut w = CpioWriter::new();
        w.directory("/proc", 0o755);
        w.file("/init", 0o755, &[7; 1001]);
        child.stdin.take().unwrap().write_all(&w.finish()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        assert_eq!(String::from_utf8_lossy(&out.stdout), "proc\ninit\n");
    }
}

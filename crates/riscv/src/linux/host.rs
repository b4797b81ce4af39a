//! The port through which a guest reaches its host.

const ENOSYS: Errno = Errno(38);

/// An error number as Linux has it, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// A time of a file, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestFileTime {
    /// Seconds.
    pub s: i64,
    /// Nanoseconds.
    pub ns: u32,
}

/// What a guest sees of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestFileStatus {
    /// Type and permission bits.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Number of the file.
    pub inode: u64,
    /// Number of the file system.
    pub device: u64,
    /// Names that the file has.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Owning group.
    pub group: u32,
    /// Units of 512 bytes on the device.
    pub blocks: u64,
    /// Last access.
    pub accessed: GuestFileTime,
    /// Last change of the content.
    pub modified: GuestFileTime,
    /// Last change of the status.
    pub changed: GuestFileTime,
}

/// What a path whose last part is a symbolic link means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkHandling {
    /// What the link leads to.
    Follow,
    /// The link.
    Keep,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFolderEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Number of the file.
    pub inode: u64,
    /// Type, the bits of a mode that `S_IFMT` masks.
    pub mode: u32,
}

/// A change of the tree of files. Paths are absolute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileTreeChange<'a> {
    /// `mkdir`.
    MakeFolder {
        /// The new folder.
        path: &'a [u8],
        /// Permission bits.
        mode: u32,
    },
    /// `unlink`.
    RemoveFile(&'a [u8]),
    /// `rmdir`.
    RemoveFolder(&'a [u8]),
    /// `symlink`.
    MakeLink {
        /// The new link.
        path: &'a [u8],
        /// What it holds.
        target: &'a [u8],
    },
    /// `link`.
    AddName {
        /// The file.
        from: &'a [u8],
        /// Its new name.
        to: &'a [u8],
    },
    /// `rename`.
    Rename {
        /// What is renamed.
        from: &'a [u8],
        /// Its new name.
        to: &'a [u8],
    },
}

/// A change of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFileChange {
    /// `ftruncate`.
    Size(u64),
    /// `fchmod`.
    Mode(u32),
    /// `futimens`: last access and last change of the content, where given.
    Times([Option<GuestFileTime>; 2]),
}

/// The number that a duplicated descriptor gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateNumber {
    /// The lowest free one from here on.
    From(i32),
    /// This one; what it was before is closed.
    Exactly(i32),
}

/// The port through which a guest reaches the host. Paths are absolute or count from the root;
/// whoever implements it keeps them below its root. What a host does not offer is `ENOSYS`.
pub trait Host {
    /// Reads from a descriptor.
    ///
    /// # Errors
    /// The host's error number.
    fn read(&mut self, descriptor: i32, bytes: &mut [u8]) -> Result<usize, Errno>;
    /// Writes to a descriptor.
    ///
    /// # Errors
    /// The host's error number.
    fn write(&mut self, descriptor: i32, bytes: &[u8]) -> Result<usize, Errno>;
    /// Opens a file with Linux's `O_*` bits.
    ///
    /// # Errors
    /// The host's error number.
    fn open(&mut self, path: &[u8], flags: u32, mode: u32) -> Result<i32, Errno>;
    /// Closes a descriptor.
    ///
    /// # Errors
    /// The host's error number.
    fn close(&mut self, descriptor: i32) -> Result<(), Errno>;
    /// Moves a descriptor's position; `whence` is `SEEK_*`.
    ///
    /// # Errors
    /// The host's error number.
    fn seek(&mut self, descriptor: i32, offset: i64, whence: u32) -> Result<u64, Errno>;
    /// The state of an open file.
    ///
    /// # Errors
    /// The host's error number.
    fn status(&mut self, descriptor: i32) -> Result<GuestFileStatus, Errno>;
    /// Nanoseconds: clock 0 since 1970, others since some fixed time.
    fn now_ns(&mut self, clock: u32) -> u64;
    /// Lets time pass.
    fn sleep_ns(&mut self, ns: u64);
    /// Fills with random bytes.
    fn fill_random(&mut self, bytes: &mut [u8]);

    /// The state of a file by its path.
    ///
    /// # Errors
    /// The host's error number.
    fn status_at(&mut self, path: &[u8], _: LinkHandling) -> Result<GuestFileStatus, Errno> {
        let opened = self.open(path, 0, 0)?;
        let status = self.status(opened);
        self.close(opened)?;
        status
    }
    /// What a symbolic link holds.
    ///
    /// # Errors
    /// The host's error number.
    fn link_target(&mut self, _: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(ENOSYS)
    }
    /// All entries of an open folder, `.` and `..` included.
    ///
    /// # Errors
    /// The host's error number.
    fn entries(&mut self, _: i32) -> Result<Vec<GuestFolderEntry>, Errno> {
        Err(ENOSYS)
    }
    /// Changes the tree of files.
    ///
    /// # Errors
    /// The host's error number.
    fn change_tree(&mut self, _: FileTreeChange<'_>) -> Result<(), Errno> {
        Err(ENOSYS)
    }
    /// Changes an open file.
    ///
    /// # Errors
    /// The host's error number.
    fn change_file(&mut self, _: i32, _: OpenFileChange) -> Result<(), Errno> {
        Err(ENOSYS)
    }
    /// A second descriptor of the same open file.
    ///
    /// # Errors
    /// The host's error number.
    fn duplicate(&mut self, _: i32, _: DuplicateNumber) -> Result<i32, Errno> {
        Err(ENOSYS)
    }
}

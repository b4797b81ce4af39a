//! The small part of `/sys` and `/proc` that describes a machine's memory, as a tar archive: for a
//! bug report, or to be replayed as a test. Nothing of programs, users or data is in it; the host
//! name is.

use crate::devices::{CXL, DAX};
use crate::error::TopologyError;
use crate::models::{MIDR, NVIDIA};
use crate::tree::{Archive, FileKind, FileTree, View, MAX_FILE};
use crate::tree::{CPUS, NODES, STAMP, TIERS};
use std::collections::BTreeMap;
use std::io::Write;
use terrace_types::Bytes;

/// Most entries that are written.
const MAX_ENTRIES: usize = 200_000;

/// What was gathered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gathered {
    /// Files written.
    pub files: usize,
    /// Symbolic links written.
    pub links: usize,
    /// Files that could not be read, with the reason.
    pub skipped: Vec<String>,
}

enum Item {
    File(Vec<u8>),
    Link(String),
}

/// Writes the archive of `tree` to `out`. `page_size` is noted in it, for sysfs does not say.
pub fn gather(
    tree: &dyn FileTree,
    page_size: Bytes,
    out: &mut dyn Write,
) -> Result<Gathered, TopologyError> {
    let view = View::new(tree, "/")?;
    let mut gatherer = Gatherer { view: &view, items: BTreeMap::new(), skipped: Vec::new() };
    gatherer.all()?;
    let Gatherer { mut items, skipped, .. } = gatherer;
    let stamp = format!("version 1\npage_size_bytes {}\n", page_size.get());
    items.insert(STAMP.to_owned(), Item::File(stamp.into_bytes()));
    let mut gathered = Gathered { skipped, ..Gathered::default() };
    let mut archive = Archive::new(out);
    for (path, item) in &items {
        let result = match item {
            Item::File(content) => {
                gathered.files += 1;
                archive.file(path, content)
            }
            Item::Link(target) => {
                gathered.links += 1;
                archive.link(path, target)
            }
        };
        result.map_err(|error| TopologyError::io("write", path, &error))?;
    }
    archive.finish().map_err(|error| TopologyError::io("write", "the archive", &error))?;
    Ok(gathered)
}

struct Gatherer<'v, 't> {
    view: &'v View<'t>,
    items: BTreeMap<String, Item>,
    skipped: Vec<String>,
}

impl Gatherer<'_, '_> {
    fn all(&mut self) -> Result<(), TopologyError> {
        self.files("proc", &["meminfo", "cpuinfo", "version"])?;
        self.files("proc/sys/kernel", &["hostname", "osrelease", "numa_balancing"])?;
        self.files("proc/sys/vm", &["zone_reclaim_mode"])?;
        self.files("sys/kernel/mm/numa", &["demotion_enabled"])?;
        self.files("sys/kernel/mm/transparent_hugepage", &["enabled"])?;
        self.folder("sys/kernel/mm/mempolicy/weighted_interleave")?;
        self.folder(NODES)?;
        for id in self.view.numbered(NODES, "node", 65_535)? {
            let node = format!("{NODES}/node{id}");
            self.files(&node, &["cpulist", "cpumap", "meminfo", "distance"])?;
            for class in 0..2 {
                self.folder(&format!("{node}/access{class}/initiators"))?;
            }
        }
        self.folder(CPUS)?;
        for id in self.view.numbered(CPUS, "cpu", 65_535)? {
            self.cpu(id)?;
        }
        for number in self.view.numbered(TIERS, "memory_tier", 65_535)? {
            self.files(&format!("{TIERS}/memory_tier{number}"), &["nodelist"])?;
        }
        self.bus(DAX, &["target_node", "numa_node", "size", "align", "driver"])?;
        self.folder("sys/bus/dax/drivers/kmem")?;
        for name in self.view.list(NVIDIA)?.into_iter().filter(|name| name.contains(':')) {
            self.one(&format!("{NVIDIA}/{name}"))?;
        }
        let cxl = ["numa_node", "size", "mode", "ram/size", "pmem/size", "target_type"];
        self.bus(CXL, &cxl)
    }

    fn cpu(&mut self, id: u32) -> Result<(), TopologyError> {
        let cpu = format!("{CPUS}/cpu{id}");
        let topology =
            ["physical_package_id", "core_id", "thread_siblings_list", "package_cpus_list"];
        self.files(&format!("{cpu}/topology"), &topology)?;
        self.files(&cpu, &[MIDR])?;
        for index in self.view.numbered(&format!("{cpu}/cache"), "index", 63)? {
            let cache = [
                "level",
                "type",
                "size",
                "coherency_line_size",
                "ways_of_associativity",
                "shared_cpu_list",
            ];
            self.files(&format!("{cpu}/cache/index{index}"), &cache)?;
        }
        Ok(())
    }

    /// The devices of a bus: the links in its folder, and these files of each device where it
    /// really is.
    fn bus(&mut self, folder: &str, names: &[&str]) -> Result<(), TopologyError> {
        for name in self.view.list(folder)? {
            let path = format!("{folder}/{name}");
            self.one(&path)?;
            if let Some(real) = self.view.resolve(&path)? {
                self.files(&real, names)?;
            }
        }
        Ok(())
    }

    fn files(&mut self, folder: &str, names: &[&str]) -> Result<(), TopologyError> {
        for name in names {
            self.one(&format!("{folder}/{name}"))?;
        }
        Ok(())
    }

    /// All files and links of one folder, not those below it.
    fn folder(&mut self, folder: &str) -> Result<(), TopologyError> {
        for name in self.view.list(folder)? {
            // `uevent` and the like are written, not read, or say nothing of memory.
            if !matches!(
                name.as_str(),
                "uevent" | "probe" | "release" | "bind" | "unbind" | "new_id" | "remove_id"
            ) {
                self.one(&format!("{folder}/{name}"))?;
            }
        }
        Ok(())
    }

    fn one(&mut self, path: &str) -> Result<(), TopologyError> {
        let Some((real, entry)) = self.view.bare(path)? else {
            return Ok(());
        };
        if self.items.contains_key(&real) {
            return Ok(());
        }
        if self.items.len() >= MAX_ENTRIES {
            let (limit, unit) = (MAX_ENTRIES, "files to gather");
            return Err(TopologyError::TooLarge { path: path.to_owned(), limit, unit });
        }
        match entry {
            FileKind::Link(target) => {
                self.items.insert(real, Item::Link(target));
            }
            FileKind::File => match self.view.text(&real) {
                Ok(Some(text)) => {
                    self.items.insert(real, Item::File(text.into_bytes()));
                }
                Ok(None) => self.skipped.push(format!("{real}: not readable")),
                Err(TopologyError::TooLarge { .. }) => {
                    self.skipped.push(format!("{real}: larger than {MAX_FILE} bytes"));
                }
                Err(error) => return Err(error),
            },
            FileKind::Missing | FileKind::Folder | FileKind::Other => {}
        }
        Ok(())
    }
}

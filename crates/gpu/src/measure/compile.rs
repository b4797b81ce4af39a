//! What is given to the compiler, and a folder that keeps what it made.

use crate::benchmark::{Benchmark, KernelInputs};
use crate::source::{rewrite_kernel, KernelSignature, VariantSource};
use crate::variant::KernelVariant;
use std::path::{Path, PathBuf};
use terrace_sys::compute::{CompileError, KernelCompiler};

/// A source and its definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileUnit {
    /// What messages call it.
    pub name: String,
    /// The variant.
    pub source: VariantSource,
    /// Definitions.
    pub defines: Vec<(String, i64)>,
}

impl CompileUnit {
    /// The unit of a variant. The block's shape is part of it only where a tile needs it.
    #[must_use]
    pub fn of_variant(
        benchmark: &Benchmark,
        kernel: &KernelSignature,
        problem: &KernelInputs,
        block: [u32; 2],
        variant: &KernelVariant,
    ) -> Self {
        let placed = variant.placed(kernel, &problem.elements(kernel));
        let source = rewrite_kernel(benchmark.source, kernel, &placed);
        let mut defines = benchmark.defines(problem, block);
        if source.tiles.is_empty() {
            defines.retain(|(name, _)| !name.starts_with("BLOCK_"));
        }
        defines.extend(source.tiles.iter().map(|tile| (format!("TILE_{tile}"), 1)));
        Self { name: format!("{}.cu", kernel.name), source, defines }
    }

    /// The name of its machine code in a folder: a hash of all that goes in (FNV-1a, 64 bits).
    #[must_use]
    pub fn file_name(&self, architecture: &str) -> String {
        let defines = self.defines.iter().map(|(name, value)| format!("{name}={value};"));
        let all: String = defines.collect::<String>() + architecture + &self.source.text;
        let hash = all.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}.cubin")
    }
}

/// Machine code by unit: from a folder, else from the compiler.
#[derive(Debug)]
pub struct CompileCache {
    folder: Option<PathBuf>,
    compiler: Result<KernelCompiler, CompileError>,
    architecture: String,
}

impl CompileCache {
    /// A cache for an architecture such as `sm_90`.
    #[must_use]
    pub fn new(folder: Option<&Path>, architecture: &str) -> Self {
        Self {
            folder: folder.map(Path::to_owned),
            compiler: KernelCompiler::load(),
            architecture: architecture.to_owned(),
        }
    }

    /// The machine code of a unit.
    ///
    /// # Errors
    /// The compiler's, where it is not in the folder.
    pub fn code(&self, unit: &CompileUnit) -> Result<Vec<u8>, CompileError> {
        let path = self.folder.as_ref().map(|f| f.join(unit.file_name(&self.architecture)));
        if let Some(code) = path.as_ref().and_then(|p| std::fs::read(p).ok()) {
            return Ok(code);
        }
        let compiler = self.compiler.as_ref().map_err(Clone::clone)?;
        let text = &unit.source.text;
        let code = compiler.compile(&unit.name, text, &self.architecture, &unit.defines)?;
        // A folder that cannot be written costs time, not results.
        if let Some(path) = path {
            let _written = std::fs::write(path, &code);
        }
        Ok(code)
    }
}

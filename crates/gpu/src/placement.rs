//! Which memories an array of a kernel can be placed in, and which of them are legal for it.

use crate::kernel_array::KernelArray;
use serde::{Deserialize, Serialize};
use terrace_types::Bytes;

/// A memory of a GPU, or a path to it, that an array can be placed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayPlacement {
    /// Global memory, as the source has it.
    Global,
    /// Global memory through the read-only path (`__ldg`).
    ReadOnly,
    /// Shared memory: a tile where the source has one, else the whole array, copied by each block.
    Shared,
    /// Constant memory.
    Constant,
    /// A texture over linear memory.
    Texture,
    /// Global memory whose lines stay in the L2 cache (an access policy window).
    PersistingL2,
    /// Managed memory, with its pages on the GPU after the first touch.
    Managed,
    /// The host's memory, pinned, read over the bus.
    Pinned,
}

impl ArrayPlacement {
    /// All, the default first.
    pub const ALL: [Self; 8] = [
        Self::Global,
        Self::ReadOnly,
        Self::Shared,
        Self::Constant,
        Self::Texture,
        Self::PersistingL2,
        Self::Managed,
        Self::Pinned,
    ];

    /// Its name in files, options and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::ReadOnly => "read_only",
            Self::Shared => "shared",
            Self::Constant => "constant",
            Self::Texture => "texture",
            Self::PersistingL2 => "persisting_l2",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
        }
    }

    /// The placement of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Whether the kernel's source changes for it.
    #[must_use]
    pub const fn changes_source(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Shared | Self::Constant | Self::Texture)
    }
}

/// Sizes of a GPU that decide what is legal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementLimits {
    /// Constant memory of a module (64 KiB on all GPUs so far).
    pub constant: Bytes,
    /// Most dynamic shared memory of a block.
    pub shared_per_block: Bytes,
    /// Most of the L2 cache that can be set aside; zero before Ampere.
    pub persisting_l2: Bytes,
    /// Elements of a texture over linear memory (CUDA programming guide, table of technical
    /// specifications: 2^27 before compute capability 8, 2^28 since).
    pub texture_elements: u64,
}

/// Why an array cannot have a placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IllegalPlacement {
    /// The kernel writes it.
    #[error("the kernel writes {array}; {placement} memory is only read")]
    Written {
        /// The array.
        array: String,
        /// The placement's name.
        placement: &'static str,
    },
    /// Its address is taken or handed on, so that not all accesses are known.
    #[error("{array} is used other than by {array}[index], so not all accesses to it are known")]
    Escapes {
        /// The array.
        array: String,
    },
    /// It does not fit.
    #[error("{array} has {bytes}; {placement} memory takes {most} here")]
    TooLarge {
        /// The array.
        array: String,
        /// Its size.
        bytes: Bytes,
        /// The placement's name.
        placement: &'static str,
        /// What it can take.
        most: Bytes,
    },
    /// Its element has no texture format or no read-only load.
    #[error("elements of type {element} cannot be read through {placement} memory")]
    Element {
        /// The type in the source.
        element: String,
        /// The placement's name.
        placement: &'static str,
    },
    /// Atomic functions work on it, and not every bus carries atomics.
    #[error("the kernel updates {array} by atomic functions, which not every bus carries")]
    Atomic {
        /// The array.
        array: String,
    },
    /// The device lacks it.
    #[error("this GPU has no {placement}")]
    Absent {
        /// The placement's name.
        placement: &'static str,
    },
}

/// Element types with a texture format and a read-only load here.
pub const TEXTURE_ELEMENTS: [&str; 3] = ["float", "int", "float4"];

/// Whether `array` of `elements` elements may have `placement` on a GPU of these limits.
///
/// # Errors
/// Why not.
pub fn check_placement(
    array: &KernelArray,
    elements: u64,
    placement: ArrayPlacement,
    limits: &PlacementLimits,
) -> Result<(), IllegalPlacement> {
    let name = placement.name();
    let bytes = Bytes(elements.saturating_mul(array.element_bytes));
    let fits = |most: Bytes| match bytes <= most {
        true => Ok(()),
        false => Err(IllegalPlacement::TooLarge {
            array: array.name.clone(),
            bytes,
            placement: name,
            most,
        }),
    };
    let tiled = placement == ArrayPlacement::Shared && array.has_tile;
    if placement.changes_source() && !tiled {
        if array.escapes {
            return Err(IllegalPlacement::Escapes { array: array.name.clone() });
        }
        if array.written {
            return Err(IllegalPlacement::Written { array: array.name.clone(), placement: name });
        }
    }
    match placement {
        ArrayPlacement::Pinned if array.atomic => {
            Err(IllegalPlacement::Atomic { array: array.name.clone() })
        }
        ArrayPlacement::Global | ArrayPlacement::Managed | ArrayPlacement::Pinned => Ok(()),
        ArrayPlacement::Shared if tiled => Ok(()),
        ArrayPlacement::Shared => fits(limits.shared_per_block),
        ArrayPlacement::Constant => fits(limits.constant),
        ArrayPlacement::ReadOnly | ArrayPlacement::Texture => {
            if !TEXTURE_ELEMENTS.contains(&array.element.as_str()) {
                let element = array.element.clone();
                return Err(IllegalPlacement::Element { element, placement: name });
            }
            if placement == ArrayPlacement::Texture {
                fits(Bytes(limits.texture_elements.saturating_mul(array.element_bytes)))?;
            }
            Ok(())
        }
        ArrayPlacement::PersistingL2 if limits.persisting_l2 == Bytes(0) => {
            Err(IllegalPlacement::Absent { placement: "persisting L2 cache" })
        }
        ArrayPlacement::PersistingL2 => Ok(()),
    }
}

//! Variants of a kernel: the same source with the accesses of some arrays rewritten.

use super::signature::{KernelSignature, TokenText};
use crate::kernel_array::KernelArray;
use crate::placement::ArrayPlacement;
use std::fmt::Write as _;
use std::ops::Range;
use terrace_types::Bytes;

/// An array, its length and its placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedArray {
    /// Its name.
    pub name: String,
    /// Elements; only placements in constant and shared memory need it.
    pub elements: u64,
    /// Where it goes.
    pub placement: ArrayPlacement,
}

/// A variant of a kernel, as source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariantSource {
    /// The rewritten source.
    pub text: String,
    /// Definitions that the compiler needs for it (`TILE_array`).
    pub tiles: Vec<String>,
    /// Arrays in constant memory, with the names of their variables in the module.
    pub constants: Vec<(String, String)>,
    /// Arrays that are textures.
    pub textures: Vec<String>,
    /// Dynamic shared memory of a block.
    pub shared: Bytes,
}

impl VariantSource {
    /// A source that needs no definitions: tiles and the block's shape (`BLOCK_X`, `BLOCK_Y`) are
    /// defined in it, and the compiler counts lines as the source has them.
    #[must_use]
    pub fn standalone(&self, block: [u32; 3]) -> String {
        let tiles = self.tiles.iter().map(|tile| format!("#define TILE_{tile}\n"));
        let [x, y, _] = block;
        let shape = format!("#ifndef BLOCK_X\n#define BLOCK_X {x}\n#define BLOCK_Y {y}\n#endif\n");
        tiles.collect::<String>() + &shape + "#line 1\n" + &self.text
    }
}

/// Rewrites `kernel` of `source` for these placements; arrays that are not named stay in global
/// memory. The caller has checked that they are legal.
#[must_use]
pub fn rewrite_kernel(
    source: &str,
    kernel: &KernelSignature,
    placed: &[PlacedArray],
) -> VariantSource {
    let mut variant = VariantSource {
        text: String::new(),
        tiles: Vec::new(),
        constants: Vec::new(),
        textures: Vec::new(),
        shared: Bytes(0),
    };
    let mut rules: Vec<(&KernelArray, ArrayPlacement)> = Vec::new();
    let (mut globals, mut prologue) = (String::new(), String::new());
    for array in &kernel.arrays {
        let Some(place) = placed.iter().find(|p| p.name == array.name) else { continue };
        match place.placement {
            ArrayPlacement::Shared if array.has_tile => variant.tiles.push(array.name.clone()),
            ArrayPlacement::Shared => {
                stage_whole(&mut prologue, array, place.elements, &mut variant.shared);
                rules.push((array, place.placement));
            }
            ArrayPlacement::Constant => {
                let variable = format!("{}_constant", array.name);
                let (element, len) = (&array.element, place.elements.max(1));
                let _ = writeln!(globals, "__constant__ {element} {variable}[{len}];");
                variant.constants.push((array.name.clone(), variable));
                rules.push((array, place.placement));
            }
            ArrayPlacement::Texture => {
                variant.textures.push(array.name.clone());
                rules.push((array, place.placement));
            }
            ArrayPlacement::ReadOnly => rules.push((array, place.placement)),
            _ => {}
        }
    }
    if !prologue.is_empty() {
        prologue = format!(
            "\n    extern __shared__ float4 placed_shared[];{prologue}    __syncthreads();\n"
        );
    }
    let text = TokenText::new(source);
    let mut out = String::with_capacity(source.len() + globals.len() + prologue.len());
    out.push_str(&source[..kernel.start]);
    out.push_str(&globals);
    let mut at = kernel.start;
    for (array, placement) in &rules {
        if *placement == ArrayPlacement::Texture {
            out.push_str(&source[at..array.declaration.start]);
            let _ = write!(out, "cudaTextureObject_t {}", array.name);
            at = array.declaration.end;
        }
    }
    out.push_str(&source[at..kernel.body.start]);
    out.push_str(&prologue);
    let writer = AccessWriter { text: &text, rules: &rules };
    let tokens = text.within(&kernel.body);
    writer.write(&mut out, tokens, kernel.body.clone(), 0);
    out.push_str(&source[kernel.body.end..]);
    variant.text = out;
    variant
}

/// Each block copies the whole array before it begins.
fn stage_whole(prologue: &mut String, array: &KernelArray, elements: u64, shared: &mut Bytes) {
    let (name, element, offset) = (&array.name, &array.element, shared.get());
    let _ = write!(
        prologue,
        "
    {element} *{name}_shared = ({element} *)((char *)placed_shared + {offset});
    for (int placed_i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
         placed_i < {elements}; placed_i += blockDim.x * blockDim.y * blockDim.z)
        {name}_shared[placed_i] = {name}[placed_i];
"
    );
    let bytes = elements * array.element_bytes;
    *shared = Bytes(offset + bytes.next_multiple_of(16));
}

/// Deepest nesting of accesses, `a[b[c[i]]]`, that is rewritten.
const MOST_DEPTH: u32 = 50;

struct AccessWriter<'a> {
    text: &'a TokenText<'a>,
    rules: &'a [(&'a KernelArray, ArrayPlacement)],
}

impl AccessWriter<'_> {
    /// Writes these tokens and the text between them, accesses rewritten; `bytes` is what the
    /// tokens and the text cover.
    /// Accesses nested deeper than any hand writes stay as they are.
    fn write(&self, out: &mut String, tokens: Range<usize>, bytes: Range<usize>, depth: u32) {
        let mut at = tokens.start;
        let mut from = bytes.start;
        while at < tokens.end {
            let rule = self.rules.iter().filter(|_| depth < MOST_DEPTH).find(|(array, _)| {
                self.text.text(at) == array.name
                    && self.text.text(at + 1) == "["
                    && !matches!(self.text.text(at.wrapping_sub(1)), "." | "->")
            });
            let Some(((array, placement), close)) =
                rule.and_then(|rule| Some((rule, self.text.closing(at + 1)?)))
            else {
                at += 1;
                continue;
            };
            let span = |at: usize| self.text.tokens[at].span.clone();
            out.push_str(&self.text.source[from..span(at).start]);
            let mut index = String::new();
            self.write(&mut index, at + 2..close, span(at + 1).end..span(close).start, depth + 1);
            let (name, element) = (&array.name, &array.element);
            let _ = match placement {
                ArrayPlacement::ReadOnly => write!(out, "__ldg(&{name}[{index}])"),
                ArrayPlacement::Texture => {
                    write!(out, "tex1Dfetch<{element}>({name}, {index})")
                }
                ArrayPlacement::Constant => write!(out, "{name}_constant[{index}]"),
                _ => write!(out, "{name}_shared[{index}]"),
            };
            from = span(close).end;
            at = close + 1;
        }
        out.push_str(&self.text.source[from..bytes.end]);
    }
}

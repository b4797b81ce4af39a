//! What a kernel of the study is, and which there are.

use crate::{fft, gemm, lu, poly, stream};

/// One computation over one array. A round is `fill`, `run`, `check`; only `run` is timed.
pub trait Kernel {
    /// Words that it works on.
    fn words(&self) -> usize;
    /// Floating-point operations of one `run`, in billions.
    fn gflop(&self) -> f64;
    /// What was chosen for this size: dimensions, tiles.
    fn shape(&self) -> String;
    /// Writes every word.
    fn fill(&mut self, data: &mut [f64]);
    /// What is measured.
    fn run(&mut self, data: &mut [f64]);
    /// Whether the result is right; if not, how far off.
    fn check(&mut self, data: &mut [f64]) -> Result<(), String>;
    /// Seconds of parts of all runs so far, where parts are distinguished.
    fn parts(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// The kernels that have no degree.
pub const OTHERS: &[&str] =
    &["stream", "gemm-plain", "gemm-segmented", "lu-plain", "lu-no-pivots", "lu-tiled", "fft"];

/// Makes a kernel: `poly1-DEGREE`, `poly2-DEGREE` or one of [`OTHERS`], for about so many bytes
/// where `dram` bytes are memory.
pub fn make(name: &str, bytes: u64, dram: u64, threads: usize) -> Result<Box<dyn Kernel>, String> {
    let unknown = || format!("{name} is none of poly1-DEGREE, poly2-DEGREE, {}", OTHERS.join(", "));
    if let Some((streams, degree)) = name.strip_prefix("poly").and_then(|rest| rest.split_once('-'))
    {
        let degree = degree.parse().map_err(|_| unknown())?;
        let update = match streams {
            "1" => false,
            "2" => true,
            _ => return Err(unknown()),
        };
        return Ok(Box::new(poly::Poly::new(bytes, degree, update, threads)));
    }
    Ok(match name {
        "stream" => Box::new(stream::Stream::new(bytes, threads)),
        "gemm-plain" => Box::new(gemm::Plain::new(bytes, threads)),
        "gemm-segmented" => Box::new(gemm::Segmented::new(bytes, dram, threads)),
        "lu-plain" => Box::new(lu::Plain::new(bytes, true, threads)),
        "lu-no-pivots" => Box::new(lu::Plain::new(bytes, false, threads)),
        "lu-tiled" => Box::new(lu::Tiled::new(bytes, dram, threads)),
        "fft" => Box::new(fft::Fft::new(bytes, threads)),
        _ => return Err(unknown()),
    })
}

/// The side of the square tiles for a matrix of about `n`: three of the tiles take at most half of
/// the memory, and they divide the matrix evenly. Returns tiles a side, and their side.
pub fn tiles(n: usize, dram: u64) -> (usize, usize) {
    let most = ((dram / 2 / 24) as f64).sqrt() as usize;
    let count = n.div_ceil(most.max(8)).max(1);
    (count, (n / count / 8 * 8).max(8))
}

/// The side of `matrices` square matrices that fill so many bytes.
pub fn side(bytes: u64, matrices: u64) -> usize {
    ((bytes / 8 / matrices) as f64).sqrt() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_right_and_notices_when_it_is_not() {
        let names = ["poly1-16", "poly2-16"].into_iter().chain(OTHERS.iter().copied());
        for name in names {
            for bytes in [120_000, 500_000] {
                let mut kernel = make(name, bytes, 200_000, 2).unwrap();
                assert!(
                    kernel.words() * 8 <= bytes as usize,
                    "{name} takes more than it was given"
                );
                let mut data = vec![f64::NAN; kernel.words()];
                kernel.fill(&mut data);
                assert!(data.iter().all(|x| x.is_finite()), "{name} leaves words as they were");
                kernel.run(&mut data);
                kernel.check(&mut data).unwrap_or_else(|e| panic!("{name}, {bytes}: {e}"));
                // Some page that came back as zeros.
                kernel.fill(&mut data);
                data[..64].fill(0.0);
                kernel.run(&mut data);
                assert!(kernel.check(&mut data).is_err(), "{name} takes zeros for data");
            }
        }
        assert!(make("poly3-16", 1, 1, 1).is_err() && make("sort", 1, 1, 1).is_err());
    }

    #[test]
    fn tiles_fit_the_memory_and_the_matrix() {
        assert_eq!(tiles(1000, 48 << 20), (1, 1000));
        assert_eq!(tiles(5016, 48 << 20), (5, 1000));
        assert_eq!(side(192 << 20, 3), 2896);
    }
}

//! Kernels whose accesses depend on data.

use super::{along, floats, ints, zeros, ArrayValues, KernelInputs, ScalarValue, SplitMix};

/// Sparse matrix-vector product.
pub mod spmv {
    use super::*;

    /// Nonzeros a row in the mean; most lie near the diagonal, as in meshes.
    const PER_ROW: usize = 16;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let mut rows = vec![0_i32];
        let mut columns = Vec::new();
        for row in 0..n {
            for _ in 0..PER_ROW / 2 + random.below(PER_ROW) {
                let near = row + random.below(256);
                let column = if random.below(8) == 0 { random.below(n) } else { near % n };
                columns.push(column as i32);
            }
            rows.push(columns.len() as i32);
        }
        let values = random.floats(columns.len());
        let arrays = vec![
            ArrayValues::Int(rows),
            ArrayValues::Int(columns),
            values,
            random.floats(n),
            zeros(n),
        ];
        along(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (rows, columns) = (ints(&p.arrays[0]), ints(&p.arrays[1]));
        let (values, x) = (floats(&p.arrays[2]), floats(&p.arrays[3]));
        let row = |r: usize| {
            let range = rows[r] as usize..rows[r + 1] as usize;
            range.fold(0.0, |sum, k| sum + values[k] * x[columns[k] as usize])
        };
        vec![(4, ArrayValues::Float((0..n).map(row).collect()))]
    }
}

/// Molecular dynamics: Lennard-Jones forces.
pub mod md {
    use super::*;

    /// Neighbours of an atom, as in SHOC's MD.
    const NEIGHBORS: usize = 128;
    const CUTOFF2: f32 = 4.0;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let side = (n as f32).cbrt();
        let mut positions = Vec::with_capacity(4 * n);
        // Atoms that are near in space are near in memory: they are filled in along one axis.
        for i in 0..n {
            positions.push(i as f32 / n as f32 * side);
            positions.push(random.unit() * 2.0);
            positions.push(random.unit() * 2.0);
            positions.push(0.0);
        }
        let mut neighbors = vec![0_i32; NEIGHBORS * n];
        for j in 0..NEIGHBORS {
            for i in 0..n {
                let mut other = (i + n - 256.min(n / 2) + random.below(512.min(n))) % n;
                if other == i {
                    other = (i + 1) % n;
                }
                neighbors[j * n + i] = other as i32;
            }
        }
        let arrays = vec![ArrayValues::Float(positions), ArrayValues::Int(neighbors), zeros(4 * n)];
        let mut problem = along(n, arrays, &[n, NEIGHBORS]);
        problem.scalars.push(ScalarValue::Float(CUTOFF2));
        problem
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (position, neighbor) = (floats(&p.arrays[0]), ints(&p.arrays[1]));
        let mut force = vec![0.0_f32; 4 * n];
        for i in 0..n {
            for j in 0..NEIGHBORS {
                let other = neighbor[j * n + i] as usize;
                let d: [f32; 3] =
                    std::array::from_fn(|c| position[4 * i + c] - position[4 * other + c]);
                let r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
                if r2 < CUTOFF2 {
                    let r2inv = 1.0 / (r2 + 0.01);
                    let r6inv = r2inv * r2inv * r2inv;
                    let strength = r2inv * r6inv * (1.5 * r6inv - 2.0);
                    for c in 0..3 {
                        force[4 * i + c] += d[c] * strength;
                    }
                }
            }
        }
        vec![(2, ArrayValues::Float(force))]
    }
}

/// Fluxes of the Euler equations over an unstructured mesh.
pub mod cfd {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let mut neighbor = vec![0_i32; 4 * n];
        for j in 0..4 {
            for i in 0..n {
                let near = (i + 1 + random.below(64) + j * 500) % n;
                // One face in twenty is at the far field.
                neighbor[i + j * n] = if random.below(20) == 0 { -1 } else { near as i32 };
            }
        }
        let normal = random.floats(12 * n);
        let mut variable = vec![0.0_f32; 5 * n];
        for (at, value) in variable.iter_mut().enumerate() {
            *value = match at / n {
                0 => 1.0 + random.unit(),
                4 => 4.0 + random.unit(),
                _ => random.unit() - 0.5,
            };
        }
        let far = ArrayValues::Float(vec![1.4, 0.3, 0.1, 0.0, 4.5]);
        let arrays = vec![
            ArrayValues::Int(neighbor),
            normal,
            ArrayValues::Float(variable),
            far,
            zeros(5 * n),
        ];
        along(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (neighbor, normal) = (ints(&p.arrays[0]), floats(&p.arrays[1]));
        let (variable, far) = (floats(&p.arrays[2]), floats(&p.arrays[3]));
        let mut flux = vec![0.0_f32; 5 * n];
        for i in 0..n {
            let own: [f32; 5] = std::array::from_fn(|v| variable[i + v * n]);
            for j in 0..4 {
                let face: [f32; 3] = std::array::from_fn(|c| normal[i + (j + c * 4) * n]);
                let other: [f32; 5] = match usize::try_from(neighbor[i + j * n]) {
                    Ok(o) => std::array::from_fn(|v| variable[o + v * n]),
                    Err(_) => std::array::from_fn(|v| far[v]),
                };
                let squares = other[1] * other[1] + other[2] * other[2] + other[3] * other[3];
                let pressure = 0.4 * (other[4] - 0.5 * squares / other[0]);
                let speed = (1.4 * pressure.abs() / other[0]).sqrt();
                let factor = 0.5 * (face[0] + face[1] + face[2]) + 0.1 * speed;
                for v in 0..5 {
                    flux[i + v * n] += factor * (own[v] - other[v]);
                }
                for c in 0..3 {
                    flux[i + (c + 1) * n] += face[c] * pressure;
                }
            }
        }
        vec![(4, ArrayValues::Float(flux))]
    }
}

/// A step of a breadth-first search.
pub mod bfs {
    use super::*;

    /// Edges of a node in the mean.
    const DEGREE: usize = 8;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let (mut starts, mut edges) = (vec![0_i32], Vec::new());
        for _ in 0..n {
            for _ in 0..1 + random.below(2 * DEGREE - 1) {
                edges.push(random.below(n) as i32);
            }
            starts.push(edges.len() as i32);
        }
        let flags = |random: &mut SplitMix, one_in: usize| {
            ArrayValues::Int((0..n).map(|_| i32::from(random.below(one_in) == 0)).collect())
        };
        let frontier = flags(&mut random, 4);
        let visited = flags(&mut random, 2);
        let next = ArrayValues::Int(vec![0; n]);
        let arrays =
            vec![ArrayValues::Int(starts), ArrayValues::Int(edges), frontier, visited, next];
        along(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (starts, edges) = (ints(&p.arrays[0]), ints(&p.arrays[1]));
        let (frontier, visited) = (ints(&p.arrays[2]), ints(&p.arrays[3]));
        let mut next = vec![0; n];
        for i in (0..n).filter(|i| frontier[*i] != 0) {
            for node in &edges[starts[i] as usize..starts[i + 1] as usize] {
                if visited[*node as usize] == 0 {
                    next[*node as usize] = 1;
                }
            }
        }
        vec![(4, ArrayValues::Int(next))]
    }
}

/// Rows of a key-value table by index; few rows are asked for most often.
pub mod gather {
    use super::*;

    const DIMENSION: usize = 64;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let slots = (0..n)
            .map(|_| {
                let u = random.unit();
                ((u * u * u * n as f32) as usize).min(n - 1) as i32
            })
            .collect();
        let arrays =
            vec![ArrayValues::Int(slots), random.floats(n * DIMENSION), zeros(n * DIMENSION)];
        along(n * DIMENSION, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (slots, table) = (ints(&p.arrays[0]), floats(&p.arrays[1]));
        let row = |i: usize| &table[slots[i] as usize * DIMENSION..][..DIMENSION];
        let out = (0..n).flat_map(|i| row(i).iter().copied()).collect();
        vec![(2, ArrayValues::Float(out))]
    }
}

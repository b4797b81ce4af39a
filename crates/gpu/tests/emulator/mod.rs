//! Runs variants of kernels on the CPU: their source is C++ with a header in place of CUDA's.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use terrace_gpu::benchmark::{ArrayValues, Benchmark, KernelInputs, ScalarValue};
use terrace_gpu::source::{rewrite_kernel, KernelSignature};
use terrace_gpu::variant::KernelVariant;

/// What the arrays hold after each variant; `None` where there is no C++ compiler.
pub fn emulate(
    folder: &Path,
    benchmark: &Benchmark,
    kernel: &KernelSignature,
    problem: &KernelInputs,
    block: [u32; 2],
    variants: &[KernelVariant],
) -> Option<Vec<Vec<ArrayValues>>> {
    let source = program(benchmark, kernel, problem, block, variants);
    let at = |name: &str| folder.join(format!("{}{name}", benchmark.kernel));
    std::fs::write(at(".cpp"), source).unwrap();
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator");
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-O0", "-w", "-I"])
        .arg(header)
        .arg("-o")
        .args([at(""), at(".cpp")])
        .output();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => {
            println!("skipped: no C++ compiler: {error}");
            return None;
        }
    };
    let words = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{}: {words}", benchmark.kernel);
    let inputs: Vec<u8> = problem.arrays.iter().flat_map(ArrayValues::to_bytes).collect();
    std::fs::write(at(".in"), inputs).unwrap();
    let ran = Command::new(at("")).args([at(".in"), at(".out")]).status().unwrap();
    assert!(ran.success(), "{}: {ran}", benchmark.kernel);
    let out = std::fs::read(at(".out")).unwrap();
    let mut from = 0;
    let results = variants.iter().map(|_| {
        let arrays = problem.arrays.iter().map(|array| {
            let values = array.of_same_type(&out[from..from + array.len() * 4]);
            from += array.len() * 4;
            values
        });
        arrays.collect()
    });
    Some(results.collect())
}

fn program(
    benchmark: &Benchmark,
    kernel: &KernelSignature,
    problem: &KernelInputs,
    block: [u32; 2],
    variants: &[KernelVariant],
) -> String {
    let elements = problem.elements(kernel);
    let mut text = String::from("#include \"cuda_on_cpu.h\"\n");
    for (key, value) in benchmark.defines(problem, block) {
        let _ = writeln!(text, "#define {key} {value}");
    }
    for (at, _) in kernel.arrays.iter().enumerate() {
        let _ = writeln!(text, "static char *array_{at};");
    }
    let mut main = String::new();
    for (number, variant) in variants.iter().enumerate() {
        let made = rewrite_kernel(benchmark.source, kernel, &variant.placed(kernel, &elements));
        let name = &kernel.name;
        let _ = writeln!(text, "#define {name} {name}_{number}\nnamespace v{number} {{");
        for tile in &made.tiles {
            let _ = writeln!(text, "#define TILE_{tile}");
        }
        text.push_str(&made.text.replace("extern __shared__", "extern"));
        let arguments = kernel.arrays.iter().enumerate().map(|(at, array)| {
            match made.textures.contains(&array.name) {
                true => format!("(unsigned long long)array_{at}"),
                false => format!("({} *)array_{at}", array.element),
            }
        });
        let scalars = problem.scalars.iter().map(|scalar| match scalar {
            ScalarValue::Int(value) => value.to_string(),
            ScalarValue::Float(value) => format!("{value:?}f"),
        });
        let arguments: Vec<String> = arguments.chain(scalars).collect();
        let _ = writeln!(text, "static void call() {{ {name}({}); }}\n}}", arguments.join(", "));
        for tile in &made.tiles {
            let _ = writeln!(text, "#undef TILE_{tile}");
        }
        let _ = writeln!(text, "#undef {name}");
        for (at, array) in problem.arrays.iter().enumerate() {
            let _ = writeln!(main, "memcpy(array_{at}, input_{at}, {});", array.len() * 4);
        }
        for (array, variable) in &made.constants {
            let at = kernel.arrays.iter().position(|a| a.name == *array).unwrap();
            let bytes = problem.arrays[at].len() * 4;
            let _ = writeln!(main, "memcpy(v{number}::{variable}, input_{at}, {bytes});");
        }
        let [gx, gy, gz] = benchmark.grid(problem, block);
        let [bx, by] = block;
        let _ = writeln!(main, "launch({{{gx}, {gy}, {gz}}}, {{{bx}, {by}, 1}}, v{number}::call);");
        for (at, array) in problem.arrays.iter().enumerate() {
            let _ = writeln!(main, "fwrite(array_{at}, 1, {}, out);", array.len() * 4);
        }
    }
    text.push_str("int main(int, char **names) {\nFILE *in = fopen(names[1], \"rb\");\n");
    for (at, array) in problem.arrays.iter().enumerate() {
        let bytes = array.len() * 4;
        let _ = writeln!(text, "void *input_{at} = read_array(in, {bytes});");
        let _ =
            writeln!(text, "array_{at} = (char *)aligned_alloc(64, ({bytes} + 127) / 64 * 64);");
    }
    let _ = write!(text, "FILE *out = fopen(names[2], \"wb\");\n{main}return fclose(out); }}\n");
    text
}

# Set-up included: each target installs what it needs with apt where it may, and says what.

.PHONY: help build install uninstall package test ring1 demo bench bench-alloc bench-far bench-far-programs bench-far-study soak ablation

help:
	@echo "make demo       see an unmodified program under the kernel's policies and under ours, in a virtual machine"
	@echo "make build      all programs and libraries, staged in target/install"
	@echo "make install    the same, copied below PREFIX (/usr/local); make uninstall removes it"
	@echo "make package    a Debian package and a Python wheel, in target/package"
	@echo "make test       all tests; last line: N passed, N failed, N skipped"
	@echo "make ring1      unit tests only"
	@echo "make bench      all cases of bench/claims.toml, as ratios (hours at first, resumed; QUICK=1: shorter ones)"
	@echo "make bench-alloc  arenas against glibc, jemalloc, mimalloc and memkind; bench/out/alloc.json"
	@echo "make ablation   half and double of each constant that steers engine and policies, simulated (hours)"
	@echo "make soak       far memory and arenas beside their models for ten minutes each, sanitizers, fuzzing"
	@echo "make bench-far  far memory beside swap, zram and a mapped file (minutes; root for the kernel's)"
	@echo "make bench-far-programs  whole programs at half their memory, the same (PROGRAMS=sort: one; minutes; root)"
	@echo "make bench-far-study  the study of software-defined memory again (25 minutes, QUICK=1: 8; root for swap)"

build:
	@scripts/build.sh >/dev/null

install:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh install

uninstall:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh uninstall

package:
	@scripts/package.sh

test:
	@scripts/test.sh

ring1:
	@scripts/test.sh --ring1

demo:
	@scripts/demo.sh

bench:
	@scripts/bench.sh $(if $(QUICK),--quick)

bench-alloc:
	@scripts/bench-alloc.sh

bench-far:
	@bench/far/run.sh $(if $(QUICK),--quick)

bench-far-programs:
	@bench/far/programs.sh $(if $(QUICK),--quick) $(PROGRAMS)

bench-far-study:
	@bench/far/study.sh $(if $(QUICK),--quick)

soak:
	@scripts/soak.sh

ablation:
	@cargo run --quiet --release -p terrace-sim --example ablation

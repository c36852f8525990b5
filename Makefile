# make run    serve memcached on 127.0.0.1:11211 from ./tapetum-data
# make check  before each commit: format, lints, unit tests, a quick simulation, one client; minutes where little was changed
# make test   everything that is checked before a change lands
# make bench  the store beside its rivals (compiles RocksDB, once)
#
# All install what is missing (Debian packages through apt-get, Python packages into the target folder) and build.

.DEFAULT_GOAL := help
.PHONY: help run check test lint test-build test-rust test-clients test-system test-differential test-udp test-nbd test-kill test-device test-power-cut test-damage test-rows test-simulation test-python setup-build setup-images setup-test setup-bench bench clean

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
CARGO := cargo
# As `test-build` leaves them.
X := $(TARGET)/debug/xtask
SERVER := $(TARGET)/debug/tapetum
SIMULATION := $(TARGET)/debug/tapetum-sim
# Passed on to `tapetum serve`, as in: make run SERVE="--memory 1GiB --capacity 50GiB"
SERVE :=
DATAGRAMS := 100000
DEVICE_REQUESTS := 20000
KILL_CYCLES := 30
DEVICE_CYCLES := 5
POWER_CUTS := 30
DAMAGED_BLOCKS := 10000
# Of `make test`; more are run by option, as in: make test-simulation CRASH_POINTS=1000000 FAULT_RUNS=10000 FAULT_OPERATIONS=10000
CRASH_POINTS := 40000
FAULT_RUNS := 300
FAULT_OPERATIONS := 2000
EACH_FAULT := 1000
DEVICE_RUNS := 600
ORDERED_RUNS := 48
BLOCK_RUNS := 16

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# exec: a signal to make's process group, or Ctrl-C, reaches the server itself, which stops cleanly.
run: setup-build
	$(CARGO) build --release --locked --package tapetum-server
	exec $(TARGET)/release/tapetum serve --data ./tapetum-data $(SERVE)

check: test-build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked --lib --quiet
	$(SIMULATION) 1 --runs 20 --operations 500 --crashes 20000 --troubles 2
	$(SIMULATION) 1 --load ordered --runs 4 --operations 300 --crashes 5000
	$(X) test-clients --server $(SERVER) --only test_operations.TestText
	@echo "make check: all passed"

# What is quick fails first. Then two at a time: most of these wait for a disk or a clock, and the simulation for a processor.
STAGES := test-simulation test-python test-clients test-system test-differential test-udp test-nbd test-kill test-device \
	test-power-cut test-damage test-rows

test: setup-images setup-test
	$(MAKE) lint
	$(MAKE) test-rust
	$(MAKE) --jobs=2 --output-sync=target $(STAGES)
	@echo "make test: all passed"

lint: setup-images
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
# As a release has it, without pictures, and as the rivals take the bench: nothing here builds either.
	$(CARGO) clippy --package tapetum-server --lib --bins --locked -- -D warnings
	$(CARGO) clippy --package tapetum-bench --no-default-features --lib --locked -- -D warnings
# Workspaces of their own, which nothing here builds: their lock files must follow what they depend on.
	$(CARGO) update --workspace --locked --quiet --manifest-path fuzz/Cargo.toml
	$(CARGO) update --workspace --locked --quiet --manifest-path crates/bench/peers/Cargo.toml
	$(CARGO) update --workspace --locked --quiet --manifest-path python/Cargo.toml

# All packages at once: cargo gives a package alone other features, and would compile the store again for each.
test-build: setup-images
	$(CARGO) build --workspace --all-targets --locked

test-rust: test-build
	$(CARGO) test --workspace --locked

test-python: test-build
	$(CARGO) clippy --manifest-path python/Cargo.toml --target-dir $(TARGET)/python --locked -- -D warnings
	$(X) test-python

test-clients: test-build
	$(X) test-clients --server $(SERVER)
	$(X) test-memccapable --server $(SERVER)

test-system: test-build
	$(X) test-system --server $(SERVER)

test-differential: test-build
	$(X) test-differential --server $(SERVER)

test-udp: test-build
	$(X) test-udp --server $(SERVER) --datagrams $(DATAGRAMS)

test-nbd: test-build
	$(X) test-nbd --server $(SERVER) --operations $(DEVICE_REQUESTS)

test-kill: test-build
	$(X) test-kill --server $(SERVER) --cycles $(KILL_CYCLES)

test-device: test-build
	$(X) test-device --server $(SERVER) --cycles $(DEVICE_CYCLES)

test-power-cut: test-build
	$(X) test-power-cut --server $(SERVER) --cycles $(POWER_CUTS)

test-damage: test-build
	$(X) test-damage --blocks $(DAMAGED_BLOCKS)

# Each row of docs/BENCHMARKS.md once, small: that it ends.
test-rows: test-build
	$(X) test-rows --server $(SERVER)

test-simulation: test-build
	$(SIMULATION) --points $(CRASH_POINTS) --troubles 0
	$(SIMULATION) 1 --runs $(FAULT_RUNS) --operations $(FAULT_OPERATIONS) --crashes 1000000 --troubles 5 --each-fault $(EACH_FAULT)
	$(SIMULATION) 1 --load ordered --runs $(ORDERED_RUNS) --operations 600 --crashes 20000
	$(SIMULATION) 1 --load block --runs $(BLOCK_RUNS) --operations 600 --crashes 20000
	$(SIMULATION) 1 --device --runs $(DEVICE_RUNS) --each-fault 100
	$(SIMULATION) --exhaustive
	$(SIMULATION) --planted

# zstd is compiled from C.
setup-build:
	@xtask/install-missing cc:build-essential

# libjpeg-turbo is compiled from C and assembler.
setup-images: setup-build
	@xtask/install-missing cmake:cmake nasm:nasm

# libmemcached-dev, libsasl2-dev, zlib1g-dev, python3-dev: pylibmc where no wheel fits.
setup-test:
	@xtask/install-missing \
		python3:python3 \
		memcached:memcached \
		memccapable:libmemcached-tools \
		fusermount3:fuse3 \
		/sbin/losetup:mount \
		/sbin/mkfs.ext4:e2fsprogs \
		strace:strace \
		systemd-analyze:systemd \
		nbdcopy:libnbd-bin \
		/usr/lib/python3/dist-packages/nbd.py:python3-libnbd \
		qemu-io:qemu-utils \
		faketime:faketime \
		/usr/include/libmemcached/memcached.h:libmemcached-dev \
		/usr/include/zlib.h:zlib1g-dev
	@python3 -c 'import ensurepip, venv' 2>/dev/null || xtask/install-missing /absent:python3-venv

# More rows: docs/BENCHMARKS.md.
bench: setup-build setup-bench
	$(CARGO) x bench quick

# RocksDB is C++, read by bindgen, which loads libclang, and finds liburing by pkg-config; memcached is built from its source with libevent.
# fio and nbdkit: block devices.
setup-bench:
	@xtask/install-missing fio:fio nbdkit:nbdkit qemu-nbd:qemu-utils memcached:memcached c++:build-essential clang:clang \
		pkg-config:pkg-config /usr/include/liburing.h:liburing-dev /usr/include/event.h:libevent-dev xz:xz-utils
	@ls /usr/lib/llvm-*/lib/libclang.so* >/dev/null 2>&1 || xtask/install-missing /absent:libclang-dev

clean:
	$(CARGO) clean

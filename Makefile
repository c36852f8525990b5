# make run      serve memcached on 127.0.0.1:11211 from ./tapetum-data
# make release  the binary for packages and figures: target/release/tapetum
# make check    before each commit: format, lints, unit tests, a quick simulation, one client; minutes where little was changed
# make test     everything that is checked before a change lands
# make soak     the same for longer, and what is too slow for each change (docs/TESTING.md)
# make bench    the store beside its rivals (compiles RocksDB, once)
#
# All install what is missing (Debian packages through apt-get, Python packages into the target folder) and build.

.DEFAULT_GOAL := help
.PHONY: help run release check test soak lint lint-rest test-build test-rust test-clients test-flight test-backups test-console test-system test-package test-image test-docs test-dashboards test-differential test-udp test-nbd test-kill test-device test-power-cut test-damage test-rows test-simulation test-python test-wheel setup-build setup-images setup-test setup-bench bench clean

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
CARGO := cargo
# What `tapetum --version` says beside the version.
BUILD = $(or $(shell git describe --always --dirty=+ --abbrev=8 --exclude '*' 2>/dev/null),unknown)
# As `test-build` leaves them.
X := $(TARGET)/debug/xtask
SERVER := $(TARGET)/debug/tapetum
SIMULATION := $(TARGET)/debug/tapetum-sim
LIBRARY := $(TARGET)/debug/lib_tapetum.so
# Where `make test` keeps what each part took.
TIMES := $(TARGET)/test-times
TIMED := xtask/timed
# Passed on to `tapetum serve`, as in: make run SERVE="--memory 1GiB --capacity 50GiB"
SERVE :=
DATAGRAMS := 100000
DEVICE_REQUESTS := 20000
KILL_CYCLES := 30
DEVICE_CYCLES := 5
POWER_CUTS := 30
DAMAGED_BLOCKS := 2500
# Rows of the benchmarks that run, by parts of their names; none named: all.
ROWS := demo,figures restart,bench quick,bench ordered-scan,bench graph,bench floods
# Of `make test`; more are run by option, as in: make test-simulation CRASH_POINTS=1000000 FAULT_RUNS=10000 FAULT_OPERATIONS=10000
CRASH_POINTS := 8000
FAULT_RUNS := 40
FAULT_OPERATIONS := 2000
EACH_FAULT := 100
DEVICE_RUNS := 200
DEVICE_EACH_FAULT := 20
ORDERED_RUNS := 16
BLOCK_RUNS := 8
BRIM_RUNS := 16
EXHAUSTIVE_ONE_IN := 8
# The fixed seeds above are the same at each commit, these are not: their first seed is the commit's id.
DRAWN_SEED := $(shell printf %d 0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 1))
CRASH_RUNS_DRAWN := 70
FAULT_RUNS_DRAWN := 32
ORDERED_RUNS_DRAWN := 24
ACROSS_RUNS_DRAWN := 8
SOAK := ROWS= DAMAGED_BLOCKS=10000 CRASH_POINTS=100000 FAULT_RUNS=300 EACH_FAULT=1000 DEVICE_RUNS=600 DEVICE_EACH_FAULT=100 ORDERED_RUNS=48 BLOCK_RUNS=16 BRIM_RUNS=200 EXHAUSTIVE_ONE_IN=1

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# exec: a signal to make's process group, or Ctrl-C, reaches the server itself, which stops cleanly.
run: setup-build
	TAPETUM_BUILD=$(BUILD) $(CARGO) build --profile quick --locked --package tapetum-server
	exec $(TARGET)/quick/tapetum serve --data ./tapetum-data $(SERVE)

release: setup-build
	TAPETUM_BUILD=$(BUILD) $(CARGO) build --release --locked --package tapetum-server

# Integration tests, and models of every interleaving, are left to `make test`: they take longer than these.
check: setup-images
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) build --workspace --locked --bins
	$(CARGO) test --workspace --locked --lib --quiet -- --skip models::
	$(SIMULATION) 1 --runs 20 --operations 500 --crashes 20000 --troubles 2
	$(SIMULATION) 1 --load ordered --runs 4 --operations 300 --crashes 5000
	$(X) test-clients --server $(SERVER) --only test_operations.TestText
	@echo "make check: all passed"

# What is quick fails first. Then two at a time: most wait for a disk or a clock; the simulation, which is last, takes both processors.
STAGES := test-rust test-clients test-flight test-backups test-console test-system test-package test-docs test-dashboards test-differential test-udp test-nbd test-kill test-device test-power-cut \
	test-python test-damage test-rows test-simulation

test: export TAPETUM_TIMES := $(TIMES)
test:
	@mkdir -p $(TARGET) && rm -f $(TIMES)
	$(TIMED) setup $(MAKE) setup-images setup-test
	$(TIMED) lints $(MAKE) lint
	$(MAKE) test-build
	$(MAKE) --jobs=2 --output-sync=target $(STAGES)
	@$(X) test-times
	@echo "make test: all passed"

soak: test lint-rest test-wheel test-image
	$(MAKE) test-simulation test-damage test-rows $(SOAK)
	@echo "make soak: all passed"

lint: setup-images
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
# Workspaces of their own, which nothing here builds: their lock files must follow what they depend on.
	$(CARGO) update --workspace --locked --quiet --manifest-path fuzz/Cargo.toml
	$(CARGO) update --workspace --locked --quiet --manifest-path crates/bench/peers/Cargo.toml

# The public pages; the crates as a release has them, without pictures, and the bench as the rivals take it: nothing here builds either.
lint-rest: setup-images
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
	$(CARGO) clippy --package tapetum-server --lib --bins --locked -- -D warnings
	$(CARGO) clippy --package tapetum-bench --no-default-features --lib --locked -- -D warnings

# All packages at once: cargo gives a package alone other features, and would compile the store again for each.
test-build: setup-images
	$(TIMED) build $(CARGO) build --workspace --all-targets --locked

test-rust: test-build
	$(TIMED) rust $(CARGO) test --workspace --locked

test-python: test-build
	$(TIMED) python $(X) test-python --library $(LIBRARY) --server $(SERVER)

test-wheel: test-build
	$(X) test-wheel --server $(SERVER)

test-clients: test-build
	$(TIMED) clients $(X) test-clients --server $(SERVER)
	$(TIMED) memccapable $(X) test-memccapable --server $(SERVER)

test-flight: test-build
	$(TIMED) flight $(X) test-flight --server $(SERVER)

test-console: test-build
	$(TIMED) console $(X) test-console --server $(SERVER)

# Backups in object storage: moto, in memory, behind a proxy that fails as networks do.
test-backups: test-build
	$(TIMED) backups $(X) test-backups --server $(SERVER)

test-system: test-build
	$(TIMED) system $(X) test-system --server $(SERVER)

test-image: test-build setup-test
	$(X) test-image

# A fresh Debian is made in the target folder, once.
test-package: test-build
	$(TIMED) package $(X) test-package --server $(SERVER)

# Every program in README and some of docs that runs without the public network, systemd or make.
test-docs: test-build
	$(TIMED) docs $(X) test-docs --server $(SERVER) --library $(LIBRARY)

# packaging/grafana and packaging/prometheus.
test-dashboards: test-build
	$(TIMED) dashboards $(X) test-dashboards --server $(SERVER)

test-differential: test-build
	$(TIMED) differential $(X) test-differential --server $(SERVER)

test-udp: test-build
	$(TIMED) udp $(X) test-udp --server $(SERVER) --datagrams $(DATAGRAMS)

test-nbd: test-build
	$(TIMED) nbd $(X) test-nbd --server $(SERVER) --operations $(DEVICE_REQUESTS)

test-kill: test-build
	$(TIMED) kill $(X) test-kill --server $(SERVER) --cycles $(KILL_CYCLES)
	$(TIMED) kill-members $(X) test-kill-members --server $(SERVER) --cycles $(KILL_CYCLES)
	$(TIMED) kill-drive $(X) test-kill-drive --server $(SERVER) --cycles $(KILL_CYCLES)

test-device: test-build
	$(TIMED) device $(X) test-device --server $(SERVER) --cycles $(DEVICE_CYCLES)

test-power-cut: test-build
	$(TIMED) power-cut $(X) test-power-cut --server $(SERVER) --cycles $(POWER_CUTS)

test-damage: test-build
	$(TIMED) damage $(X) test-damage --blocks $(DAMAGED_BLOCKS)

# Rows of docs/BENCHMARKS.md once, small: that they end.
test-rows: test-build
	$(TIMED) rows $(X) test-rows --server $(SERVER) $(if $(ROWS),--only "$(ROWS)")

test-simulation: test-build
	$(TIMED) simulation-failed $(SIMULATION) --failed
	$(TIMED) simulation-crashes $(SIMULATION) --points $(CRASH_POINTS) --troubles 0
	$(TIMED) simulation-crashes $(SIMULATION) $(DRAWN_SEED) --runs $(CRASH_RUNS_DRAWN) --troubles 0
	$(TIMED) simulation-across $(SIMULATION) $(DRAWN_SEED) --across --runs $(ACROSS_RUNS_DRAWN) --operations $(FAULT_OPERATIONS) --crashes 1000000 --troubles 5
	$(TIMED) simulation-across $(SIMULATION) $(DRAWN_SEED) --across --load ordered --runs $(ACROSS_RUNS_DRAWN) --operations 600 --crashes 20000
	$(TIMED) simulation-faults $(SIMULATION) 1 --runs $(FAULT_RUNS) --operations $(FAULT_OPERATIONS) --crashes 1000000 --troubles 5 --each-fault $(EACH_FAULT)
	$(TIMED) simulation-faults $(SIMULATION) $(DRAWN_SEED) --runs $(FAULT_RUNS_DRAWN) --operations $(FAULT_OPERATIONS) --crashes 1000000 --troubles 5
	$(TIMED) simulation-ordered $(SIMULATION) 1 --load ordered --runs $(ORDERED_RUNS) --operations 600 --crashes 20000
	$(TIMED) simulation-ordered $(SIMULATION) $(DRAWN_SEED) --load ordered --runs $(ORDERED_RUNS_DRAWN) --operations 600 --crashes 20000
	$(TIMED) simulation-block $(SIMULATION) $(DRAWN_SEED) --load block --runs $(BLOCK_RUNS) --operations 600 --crashes 20000
	$(TIMED) simulation-brim $(SIMULATION) $(DRAWN_SEED) --load brim --runs $(BRIM_RUNS)
	$(TIMED) simulation-device $(SIMULATION) 1 --device --runs $(DEVICE_RUNS) --each-fault $(DEVICE_EACH_FAULT)
	$(TIMED) simulation-lease $(SIMULATION) 1 --lease --runs 20
	$(TIMED) simulation-lease $(SIMULATION) $(DRAWN_SEED) --lease --runs 20
	$(TIMED) simulation-exhaustive $(SIMULATION) $(DRAWN_SEED) --exhaustive --one-in $(EXHAUSTIVE_ONE_IN)
	$(TIMED) simulation-planted $(SIMULATION) --planted

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
		/usr/sbin/nutcracker:nutcracker \
		fusermount3:fuse3 \
		/sbin/losetup:mount \
		/sbin/mkfs.ext4:e2fsprogs \
		strace:strace \
		systemd-analyze:systemd \
		mmdebstrap:mmdebstrap \
		nbdcopy:libnbd-bin \
		/usr/lib/python3/dist-packages/nbd.py:python3-libnbd \
		qemu-io:qemu-utils \
		faketime:faketime \
		promtool:prometheus \
		nc:netcat-openbsd \
		curl:curl \
		chromium:chromium \
		chromedriver:chromium-driver \
		ip:iproute2 \
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

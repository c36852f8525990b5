//! Tests written in Python. With unittest: tests/clients, real clients in a virtual environment of the target folder; tests/flight and
//! tests/backups, as those; tests/console, the console's page in a browser; tests/system, the server under operating system conditions (file
//! systems, limits, clocks, signals), which needs no packages; tests/nbd, block devices through libnbd; tests/package, what users install;
//! tests/dashboards, dashboard and alerts under Prometheus; and tests/docs, the programs of the documents. They start the server themselves,
//! because some restart it. With pytest: tests/python, the package in python/, with the native half that cargo built, or as a wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::environment::environment;
use crate::package::Release;
use crate::workspace::{self, succeed};

/// `--only NAME` picks a module, class or test.
pub fn clients(arguments: &Arguments) -> Result<(), Failure> {
    run("clients", &environment("venv", "tests/clients/requirements.txt", &[])?.join("bin/python"), arguments)
}

/// As [`clients`], with those of Flight: tests/flight.
pub fn flight(arguments: &Arguments) -> Result<(), Failure> {
    run("flight", &flight_environment()?.join("bin/python"), arguments)
}

/// The console's page in Chromium. `--pictures FOLDER` has the documents' pictures drawn anew.
pub fn console(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let pictures = arguments.text("pictures").map(std::path::absolute).transpose()?;
    let binary = arguments.tested_server()?;
    for (program, package) in [("chromium", "chromium"), ("chromedriver", "chromium-driver")] {
        if Command::new(program).arg("--version").output().is_err() {
            return Err(format!("there is no {program}: make setup-test, or apt-get install {package}").into());
        }
    }
    let python = environment("venv-console", "tests/console/requirements.txt", &[])?.join("bin/python");
    workspace::keeping("console", |scratch| {
        let mut tests = unittest_command("console", &python, &binary, scratch, only.as_deref())?;
        pictures.iter().for_each(|folder| {
            tests.env("TAPETUM_PICTURES", folder);
        });
        succeed(&mut tests, unittest_failed("console"))
    })
}

/// Backups in object storage. `--s3-server FILE`: versitygw, in the place of moto.
pub fn backups(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let storage = arguments.text("s3-server").map(std::path::absolute).transpose()?;
    let binary = arguments.tested_server()?;
    let python = environment("venv-backups", "tests/backups/requirements.txt", &[])?.join("bin/python");
    workspace::keeping("backups", |scratch| {
        let mut tests = unittest_command("backups", &python, &binary, scratch, only.as_deref())?;
        tests.env("TAPETUM_X", std::env::current_exe()?);
        tests.envs(storage.iter().map(|storage| ("TAPETUM_S3_SERVER", storage)));
        succeed(&mut tests, unittest_failed("backups"))
    })
}

/// The clients of Flight.
pub fn flight_environment() -> Result<PathBuf, Failure> {
    environment("venv-flight", "tests/flight/requirements.txt", &[])
}

/// `--only PATTERN` picks tests, and `--server` names the binary that serves stores to them. PyTorch is used if the system has it; tests that
/// are skipped without it say so.
pub fn package(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let library = arguments.text("library").map(std::path::absolute).transpose()?;
    let server = arguments.tested_server()?;
    let library = library.map_or_else(workspace::build_python_library, Ok)?;
    let python = package_environment()?.join("python");
    workspace::keeping("python", |scratch| {
        let packages = scratch.join("packages");
        lay_out(&library, &packages.join("tapetum"))?;
        let mut tests = pytest(&python, &server, scratch, only.as_deref())?;
        // Before the packages installed in the environment.
        tests.env("PYTHONPATH", packages);
        succeed(&mut tests, PYTEST_FAILED)
    })
}

/// Like [`package`], for the wheel with the tested binary, and with asserts: tests/package first, which installs it as a user does.
/// `--package` names a wheel that was made before.
pub fn wheel(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let named = named_package(arguments)?;
    let server = arguments.tested_server()?;
    workspace::keeping("python", |scratch| {
        let wheel = match named {
            Some(wheel) => wheel,
            None => crate::package::wheel::make(&Release::of(&server, scratch, scratch)?, "dev")?,
        };
        let mut tests = package_tests("test_wheel", scratch);
        succeed(tests.env("TAPETUM_WHEEL", &wheel), unittest_failed("package"))?;
        let python = package_environment()?.join("python");
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"]);
        succeed(pip.arg(&wheel), "pip could not install the wheel; its message is above")?;
        succeed(&mut pytest(&python, &server, scratch, only.as_deref())?, PYTEST_FAILED)
    })
}

const PYTEST_FAILED: &str = "a test of tests/python failed; pytest's message is above";

/// The programs of the environment for the package's tests.
fn package_environment() -> Result<PathBuf, Failure> {
    Ok(environment("venv-package", "tests/python/requirements.txt", &["--system-site-packages"])?.join("bin"))
}

/// Lays out the package like in a wheel: its modules, and the native half under the name that Python looks for.
fn lay_out(library: &Path, package: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(package)?;
    for module in std::fs::read_dir(workspace::root().join("python/tapetum"))? {
        let module = module?;
        std::os::unix::fs::symlink(module.path(), package.join(module.file_name()))?;
    }
    Ok(std::os::unix::fs::symlink(library, package.join("_tapetum.abi3.so"))?)
}

fn pytest(python: &Path, server: &Path, scratch: &Path, only: Option<&str>) -> Result<Command, Failure> {
    let mut tests = Command::new(python);
    tests.current_dir(workspace::root().join("tests/python"));
    // -rs: lists the skipped tests, and why.
    tests.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp"]).arg(scratch.join("pytest"));
    only.iter().for_each(|pattern| {
        tests.args(["-k", pattern]);
    });
    // The tests run in another folder.
    tests.env("TAPETUM_SERVER", std::path::absolute(server)?);
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(tests)
}

/// The interpreter of an environment with these requirements, and with the package's release build.
pub fn bench_interpreter(requirements: &str) -> Result<PathBuf, Failure> {
    install(&environment("venv-bench", requirements, &[])?.join("bin"), "release")
}

/// Builds ./python and installs it like a user does, except for the profile, into the environment of these programs, which has the build
/// tools. Returns the environment's interpreter.
fn install(programs: &Path, profile: &str) -> Result<PathBuf, Failure> {
    let python = programs.join("python");
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let searched = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&searched));
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps"])
        .args(["--force-reinstall", "./python"])
        .current_dir(workspace::root())
        .env("PATH", std::env::join_paths(searched)?)
        .env("CARGO_TARGET_DIR", workspace::target())
        .env("MATURIN_PEP517_ARGS", format!("--profile {profile} --locked"));
    succeed(&mut pip, "pip could not install ./python; its message is above")?;
    Ok(python)
}

/// Like [`clients`]. Tests that require root report when they are skipped.
pub fn system(arguments: &Arguments) -> Result<(), Failure> {
    run("system", Path::new("python3"), arguments)
}

/// The dashboard and the alerts of packaging/, under Prometheus, which Debian has.
pub fn dashboards(arguments: &Arguments) -> Result<(), Failure> {
    run("dashboards", Path::new("python3"), arguments)
}

fn run(tests: &str, interpreter: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let binary = arguments.tested_server()?;
    workspace::keeping(tests, |scratch| unittest(tests, interpreter, &binary, scratch, only.as_deref()))
}

/// What tests/package looks at: a package that was made before, or one of this binary.
enum Tested {
    Package(PathBuf),
    Binary(PathBuf),
}

impl Tested {
    /// The package that `--package` names, or else a binary. No option may be read afterwards.
    fn of(
        arguments: &Arguments,
        binary: impl FnOnce(&Arguments) -> Result<PathBuf, Failure>,
    ) -> Result<Tested, Failure> {
        match named_package(arguments)? {
            Some(package) => {
                arguments.finish()?;
                Ok(Tested::Package(package))
            }
            None => binary(arguments).map(Tested::Binary),
        }
    }

    fn package(self, make: impl FnOnce(&Path) -> Result<PathBuf, Failure>) -> Result<PathBuf, Failure> {
        match self {
            Tested::Package(package) => Ok(package),
            Tested::Binary(binary) => make(&binary),
        }
    }
}

fn named_package(arguments: &Arguments) -> Result<Option<PathBuf>, Failure> {
    // The tests run in another folder.
    Ok(arguments.text("package").map(std::path::absolute).transpose()?)
}

/// The Debian package in a fresh root: tests/package. Only root can make one.
pub fn debian(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").unwrap_or("test_deb").to_owned();
    let tested = Tested::of(arguments, Arguments::tested_server)?;
    workspace::keeping("debian", |scratch| {
        let package = tested.package(|binary| {
            // A test installs it once: little compression is quicker than much.
            crate::package::deb::make(&Release { compression: 0, ..Release::of(binary, scratch, scratch)? })
        })?;
        let mut tests = package_tests(&only, scratch);
        tests.env("TAPETUM_DEB", package).env("TAPETUM_FRESH_ROOT", workspace::target().join("fresh-root.tar"));
        succeed(&mut tests, unittest_failed("package"))
    })
}

/// The image for containers, of a static binary: tests/package, as [`debian`].
pub fn image(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").unwrap_or("test_image").to_owned();
    let tested = Tested::of(arguments, |arguments| {
        let named = arguments.server();
        arguments.finish()?;
        named.map_or_else(|| crate::package::build_static("quick"), Ok)
    })?;
    workspace::keeping("image", |scratch| {
        let image = tested.package(|binary| crate::package::image::make(&Release::of(binary, scratch, scratch)?))?;
        let mut tests = package_tests(&only, scratch);
        succeed(tests.env("TAPETUM_IMAGE", image), unittest_failed("package"))
    })
}

/// tests/package, whose packages have their own binaries.
fn package_tests(only: &str, scratch: &Path) -> Command {
    unittest_alone("package", Path::new("python3"), scratch, Some(only))
}

/// The unchanged programs of README and docs. `--only NAME` picks a document's test.
pub fn documents(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let library = arguments.text("library").map(std::path::absolute).transpose()?;
    let binary = arguments.tested_server()?;
    let library = library.map_or_else(workspace::build_python_library, Ok)?;
    let wheels = wheels_of_the_documents()?;
    let python = package_environment()?.join("python");
    workspace::keeping("docs", |scratch| {
        let packages = scratch.join("packages");
        lay_out(&library, &packages.join("tapetum"))?;
        let mut tests = unittest_command("docs", Path::new("python3"), &binary, scratch, only.as_deref())?;
        tests.env("TAPETUM_PYTHON", &python).env("PYTHONPATH", packages);
        tests.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", &wheels);
        succeed(&mut tests, unittest_failed("docs"))
    })
}

/// The packages that the documents install with pip, in a folder, so that their programs run without a network.
fn wheels_of_the_documents() -> Result<PathBuf, Failure> {
    let folder = workspace::target().join("docs-wheels");
    if !folder.exists() {
        let python = environment("venv", "tests/clients/requirements.txt", &[])?.join("bin/python");
        let mut download = Command::new(python);
        download.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "pymemcache",
            "--dest",
        ]);
        succeed(download.arg(&folder), "pip could not download pymemcache; its message is above")?;
    }
    Ok(folder)
}

/// Uses the first interpreter with libnbd's module: Debian's package installs it for the system's interpreter, which may not be the first
/// in PATH.
pub fn devices(binary: &Path, scratch: &Path) -> Result<(), Failure> {
    let has_module = |python: &&str| {
        let imported = Command::new(python).args(["-c", "import nbd"]).output();
        imported.is_ok_and(|output| output.status.success())
    };
    let python = ["/usr/bin/python3", "python3"].into_iter().find(has_module);
    let python = python.ok_or("python3 has no module nbd, by which libnbd is asked: apt-get install python3-libnbd")?;
    unittest("nbd", Path::new(python), binary, scratch, None)
}

fn unittest(tests: &str, interpreter: &Path, binary: &Path, scratch: &Path, only: Option<&str>) -> Result<(), Failure> {
    succeed(&mut unittest_command(tests, interpreter, binary, scratch, only)?, unittest_failed(tests))
}

fn unittest_failed(tests: &str) -> String {
    format!("a test of tests/{tests} failed; unittest's message is above")
}

/// Tests of a server.
fn unittest_command(
    tests: &str,
    interpreter: &Path,
    binary: &Path,
    scratch: &Path,
    only: Option<&str>,
) -> Result<Command, Failure> {
    let mut python = unittest_alone(tests, interpreter, scratch, only);
    // The tests run in another folder.
    python.env("TAPETUM_SERVER", std::path::absolute(binary)?);
    Ok(python)
}

fn unittest_alone(tests: &str, interpreter: &Path, scratch: &Path, only: Option<&str>) -> Command {
    let mut python = Command::new(interpreter);
    python.current_dir(workspace::root().join("tests").join(tests)).args(["-m", "unittest"]);
    match only {
        Some(name) => python.arg(name),
        None => python.arg("discover"),
    };
    python.env("TAPETUM_SCRATCH", scratch);
    // tests/nbd and tests/dashboards start their servers as tests/system does.
    python.env("PYTHONPATH", workspace::root().join("tests/system"));
    // No byte code beside the sources.
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

//! A MariaDB of its own: data in a folder, reached by a socket, ended when it is dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::nbd::said;
use tapetum_bench::server::die_with_parent;

const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(120);
const SERVER: &str = "/usr/sbin/mariadbd";

pub struct Database {
    server: Child,
    socket: PathBuf,
}

/// Whether there is a MariaDB.
pub fn check() -> Result<(), Failure> {
    match Path::new(SERVER).exists() {
        true => Ok(()),
        false => Err(format!("{SERVER} is missing: apt-get install mariadb-server").into()),
    }
}

impl Database {
    /// A new one with its data in `files`; each transaction is durable when it is answered.
    pub fn start(files: &Path, folder: &Path, pool_bytes: u64) -> Result<Database, Failure> {
        let (data, socket) = (files.join("data"), folder.join("mariadb.sock"));
        let at = format!("--datadir={}", data.display());
        let words = ["--no-defaults", "--user=root", &at];
        said(
            Command::new("mysql_install_db")
                .args(words)
                .args(["--skip-test-db", "--auth-root-authentication-method=normal"]),
        )?;
        let log = std::fs::File::create(folder.join("mariadb.log"))?;
        let mut command = Command::new(SERVER);
        command.args(words).arg(format!("--socket={}", socket.display())).args([
            "--skip-networking",
            "--innodb-flush-method=O_DIRECT",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-io-capacity=2000",
            "--innodb-io-capacity-max=10000",
            // Room for the pages of a few turns: how often they are written again is what is compared.
            "--innodb-log-file-size=96M",
        ]);
        command.arg(format!("--innodb-buffer-pool-size={pool_bytes}"));
        die_with_parent(&mut command);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let mut database = Database { server, socket };
        let begun = Instant::now();
        while database.client("mysqladmin", &["ping"]).is_err() {
            if begun.elapsed() > START_MAX || database.server.try_wait()?.is_some() {
                return Err(format!("MariaDB does not start: {}", folder.join("mariadb.log").display()).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        database.client("mysql", &["-e", "create database sbtest"])?;
        Ok(database)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Has it write what it has, and end.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.client("mysqladmin", &["shutdown"])?;
        let begun = Instant::now();
        while self.server.try_wait()?.is_none() {
            if begun.elapsed() > STOP_MAX {
                return Err(format!("MariaDB does not end within {STOP_MAX:?}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn client(&self, program: &str, words: &[&str]) -> Result<String, Failure> {
        said(Command::new(program).args(["--no-defaults", "-uroot", "-S"]).arg(&self.socket).args(words))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

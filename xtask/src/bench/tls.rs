//! GETs over TLS beside Debian's memcached with `-Z`, all in DRAM and with one thread each: one at a time, and pipelined. And the cost of a
//! login.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tapetum_bench::latencies::Latencies;
use tapetum_bench::process;
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, ServerOptions};
use tapetum_bench::tls_client::{self, TlsConnection, name};
use tapetum_bench::turn::Report;

use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::series::Series;
use crate::results::spread::Spread;
use crate::{Failure, workspace};

const VALUE_BYTES: usize = 200;
/// Connections, and requests on their way on each.
const WAYS: [(&str, usize, usize); 2] =
    [("one at a time over 32 connections", 32, 1), ("32 deep over 4 connections", 4, 32)];
const USERS: usize = 9;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 100_000)?;
    let rounds = arguments.number("rounds", 11)?;
    arguments.finish()?;
    let binary = arguments.measured_server(None)?;
    let scratch = workspace::Scratch::new("tls")?;
    let certificate = Certificate::make(scratch.folder())?;
    let ours = ServerOptions::new(&binary, &scratch.folder().join("data"), &[])?;
    let options = ["--memory", "512MiB", "--capacity", "2GiB", "--tier", "256MiB", "--sync", "no", "--threads", "1"];
    let options = options.into_iter().map(str::to_owned).chain(certificate.options());
    let ours = ServerOptions { options: options.collect(), ..ours };
    let memcached = ServerOptions::new(Path::new("/usr/bin/memcached"), &scratch.folder().join("memcached"), &[])?;
    let theirs = format!("ssl_chain_cert={},ssl_key={}", certificate.chain.display(), certificate.key.display());
    let words = ["-t", "1", "-Z", "-o", &theirs].map(str::to_owned).to_vec();
    let memcached = ServerOptions { memcached_options: words, ..memcached };
    let mut outcome = Outcome::new(
        arguments,
        "tls",
        format!(
            "GETs of {items} items of {VALUE_BYTES} bytes in DRAM over TLS 1.3, one server thread, beside memcached -Z"
        ),
    );
    let peers = [
        Peer::start("server", &ours, &certificate, items)?,
        Peer::start("memcached", &memcached, &certificate, items)?,
    ];
    for (way, connections, depth) in WAYS {
        let mut series = peers.each_ref().map(|peer| Series::new(&format!("{} {way}", peer.name)));
        // The first turn of each brings items into the tier.
        for round in 0..=rounds {
            for (peer, series) in peers.iter().zip(&mut series) {
                let report = peer.turn(arguments.time(Duration::from_secs(1)), connections, depth, items, round)?;
                if round > 0 {
                    series.reports.push(report);
                }
            }
        }
        let [server, memcached] = &series;
        outcome.hold(
            format!("requests a second ÷ memcached -Z, {way}"),
            server.ratio(memcached, Report::operations_per_second),
            Reach::AtLeast(1.2),
        );
        outcome.hold(
            format!("CPU a request ÷ memcached -Z, {way}"),
            server.ratio(memcached, Report::cpu_us_per_operation),
            Reach::AtMost(1.0),
        );
        outcome.series(series);
    }
    for peer in peers {
        peer.server.terminate()?;
    }
    logins(&mut outcome, ours, &certificate, scratch.folder())?;
    outcome.end()
}

/// A certificate of the server's, which is its own authority.
struct Certificate {
    chain: PathBuf,
    key: PathBuf,
}

impl Certificate {
    fn make(folder: &Path) -> Result<Certificate, Failure> {
        let (chain, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
        openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.arg("-keyout").arg(&key).arg("-out").arg(&chain);
        let done =
            openssl.output().map_err(|error| format!("openssl cannot be run (apt-get install openssl): {error}"))?;
        if !done.status.success() {
            return Err(format!("openssl: {}", String::from_utf8_lossy(&done.stderr)).into());
        }
        Ok(Certificate { chain, key })
    }

    fn options(&self) -> [String; 4] {
        let path = |path: &Path| path.display().to_string();
        ["--ssl-chain-cert".into(), path(&self.chain), "--ssl-key".into(), path(&self.key)]
    }
}

struct Peer {
    name: &'static str,
    server: Server,
    address: SocketAddr,
    config: Arc<rustls::ClientConfig>,
}

impl Peer {
    fn start(
        name: &'static str,
        options: &ServerOptions,
        certificate: &Certificate,
        items: u64,
    ) -> Result<Peer, Failure> {
        let server = options.spawn()?;
        let (address, config) = (server.address(), tls_client::config(&certificate.chain)?);
        let peer = Peer { name, server, address, config };
        let mut connection = peer.first_connection()?;
        let value = [b'v'; VALUE_BYTES];
        for key in 0..items {
            let set = [format!("set {} 0 0 {VALUE_BYTES}\r\n", self::name(key)).as_bytes(), &value, b"\r\n"].concat();
            connection.exchange(&set, b"STORED\r\n")?;
        }
        Ok(peer)
    }

    /// Waits until the server lets somebody in.
    fn first_connection(&self) -> Result<TlsConnection, Failure> {
        let begun = Instant::now();
        loop {
            match TlsConnection::open(self.address, &self.config) {
                Ok(connection) => return Ok(connection),
                Err(error) if begun.elapsed() > Duration::from_secs(60) => {
                    return Err(format!("{error}\n{}", self.server.log_tail()).into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn turn(&self, time: Duration, connections: usize, depth: usize, items: u64, seed: u64) -> Result<Report, Failure> {
        let open = |_| TlsConnection::open(self.address, &self.config);
        let mut connections = (0..connections).map(open).collect::<Result<Vec<_>, _>>()?;
        for connection in &mut connections {
            connection.ask(std::iter::once(0))?;
            connection.take(1, VALUE_BYTES)?;
        }
        let before = process::Usage::of(&[self.server.process()])?;
        let (begun, mut random, mut latencies) = (Instant::now(), Random::new(seed), Latencies::default());
        while begun.elapsed() < time {
            let sent = Instant::now();
            for connection in &mut connections {
                connection.ask((0..depth).map(|_| random.below(items)))?;
            }
            for connection in &mut connections {
                connection.take(depth, VALUE_BYTES)?;
                (0..depth).for_each(|_| latencies.read(sent.elapsed()));
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Report { latencies, seconds, usage: process::Usage::of(&[self.server.process()])?.since(&before) })
    }
}

/// Logins of users who were not there before, one after the other, and the memory that one takes.
fn logins(outcome: &mut Outcome, ours: ServerOptions, certificate: &Certificate, folder: &Path) -> Result<(), Failure> {
    let (users, password) = (folder.join("users"), folder.join("password"));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password)?.write_all(b"sesame\n")?;
    for number in 0..USERS {
        let mut add = Command::new(&ours.binary);
        add.args(["user", "add", &format!("user{number}"), "--read", "default", "--users-file"]).arg(&users);
        add.arg("--password-file").arg(&password).stderr(Stdio::null());
        workspace::succeed(&mut add, "tapetum user add failed")?;
    }
    // Nothing is warmed meanwhile, which would count as a login's memory.
    let options = ["--memory", "512MiB", "--capacity", "2GiB", "--threads", "1"].map(str::to_owned).into_iter();
    let options =
        options.chain(certificate.options()).chain(["--users-file".into(), users.display().to_string()]).collect();
    let ours = ServerOptions { data: folder.join("logins"), ..ours };
    let peer = Peer {
        name: "server",
        server: ServerOptions { options, ..ours }.spawn()?,
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        config: tls_client::config(&certificate.chain)?,
    };
    let peer = Peer { address: peer.server.address(), ..peer };
    let mut connection = peer.first_connection()?;
    connection.exchange(b"get a\r\n", b"CLIENT_ERROR unauthenticated\r\n")?;
    let process = peer.server.process();
    let (before, mut took_ms) = (process::read(process)?.resident_max_bytes, Vec::new());
    let mut more_bytes = 0;
    for number in 0..USERS {
        let mut connection = TlsConnection::open(peer.address, &peer.config)?;
        connection.exchange(b"get a\r\n", b"CLIENT_ERROR unauthenticated\r\n")?;
        let begun = Instant::now();
        connection.exchange(format!("set a 0 0 12\r\nuser{number} sesame\r\n").as_bytes(), b"STORED\r\n")?;
        took_ms.push(begun.elapsed().as_secs_f64() * 1000.0);
        if number == 0 {
            more_bytes = process::read(process)?.resident_max_bytes.saturating_sub(before);
        }
    }
    outcome.hold("a login, ms", Spread::of(took_ms), Reach::AtMost(100.0));
    outcome.hold_once("memory of a login, MiB", more_bytes as f64 / f64::from(1 << 20), Reach::AtMost(20.0));
    peer.server.terminate()
}

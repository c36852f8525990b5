//! The cost of the console at a server that does nothing else: without viewers, and with twenty who ask for the figures each second, as the
//! page does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bench, mebibytes};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use tapetum_bench::process::{self, Usage};
use tapetum_bench::server::free_address;

const VIEWERS: usize = 20;
const EACH: Duration = Duration::from_secs(1);

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let lasts = Duration::from_secs(arguments.number("seconds", 30)?);
    let address = free_address()?;
    let bench = Bench::start(
        "console",
        arguments,
        &["--capacity", "256MiB", "--memory", "64MiB", "--console", &address.to_string()],
    )?;
    let about =
        format!("{} s each; {VIEWERS} viewers, a request a second each, connections that stay", lasts.as_secs());
    let mut outcome = Outcome::new(arguments, "console", about);
    let process = bench.server().process();
    let idle = cpu_percent(process, || {
        thread::sleep(lasts);
        Ok(())
    })?;
    let token = token(address)?;
    let mut viewers = Vec::new();
    for _ in 0..VIEWERS {
        viewers.push(Viewer::connect(address, &token)?);
    }
    let viewed = cpu_percent(process, || view(viewers, lasts))?;
    outcome.hold_once("% of a core without viewers", idle, Reach::AtMost(0.5));
    outcome.hold_once(format!("% of a core with {VIEWERS} viewers"), viewed, Reach::AtMost(3.0));
    outcome.report("MiB resident at most", mebibytes(process::read(process)?.resident_max_bytes));
    bench.end()?;
    outcome.end()
}

/// The share of a core that a process takes meanwhile.
fn cpu_percent(process: u32, meanwhile: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let (before, began) = (Usage::of(&[process])?, Instant::now());
    meanwhile()?;
    let used = Usage::of(&[process])?.since(&before);
    Ok(used.cpu_us as f64 / began.elapsed().as_micros() as f64 * 100.0)
}

fn view(viewers: Vec<Viewer>, lasts: Duration) -> Result<(), Failure> {
    let views: Vec<_> = viewers.into_iter().map(|viewer| thread::spawn(move || viewer.look(lasts))).collect();
    for view in views {
        view.join().map_err(|_| "a viewer panicked")??;
    }
    Ok(())
}

/// The token of a server without users.
fn token(address: SocketAddr) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address)?;
    let greeting: serde_json::Value = serde_json::from_slice(&ask(&mut stream, address, "login", "")?)?;
    Ok(greeting["token"].as_str().ok_or("the console gave no token")?.into())
}

/// A page that is open.
struct Viewer {
    stream: TcpStream,
    address: SocketAddr,
    authorization: String,
}

impl Viewer {
    fn connect(address: SocketAddr, token: &str) -> Result<Viewer, Failure> {
        let authorization = format!("Authorization: Bearer {token}\r\n");
        Ok(Viewer { stream: TcpStream::connect(address)?, address, authorization })
    }

    fn look(mut self, lasts: Duration) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < lasts {
            let asked = Instant::now();
            let told = ask(&mut self.stream, self.address, "figures", &self.authorization);
            told.map_err(|error| error.to_string())?;
            thread::sleep(EACH.saturating_sub(asked.elapsed()));
        }
        Ok(())
    }
}

/// Asks on a connection that stays, and takes the whole answer.
fn ask(stream: &mut TcpStream, address: SocketAddr, name: &str, authorization: &str) -> Result<Vec<u8>, Failure> {
    let head = format!(
        "POST /api/{name} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nContent-Type: application/json\r\n\
         {authorization}Content-Length: 2\r\n\r\n{{}}"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = BufReader::new(stream);
    let (mut line, mut body_bytes, mut is_right) = (String::new(), 0, false);
    loop {
        line.clear();
        answer.read_line(&mut line)?;
        let words = line.trim_end();
        is_right |= words.starts_with("HTTP/1.1 200");
        if let Some(length) = words.to_ascii_lowercase().strip_prefix("content-length: ") {
            body_bytes = length.parse()?;
        }
        if words.is_empty() {
            break;
        }
    }
    let mut body = vec![0; body_bytes];
    answer.read_exact(&mut body)?;
    if is_right { Ok(body) } else { Err(format!("the console refused: {}", String::from_utf8_lossy(&body)).into()) }
}

//! kill -9 under load: clients write, the server is killed at a random moment (now and then once more while it
//! recovers), started again on the same data, and every acknowledged write must be there. Values, moments and kills come
//! from a seed; the interleaving is the machine's, so a seed shows a failure again often, not always.
//!
//! This tests the process. What a power cut may tear is the simulator's.

mod client;
mod model;

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::client::{Client, Shared};
use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, Profile};
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, ServerOptions};

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let cycles = arguments.number("cycles", 30)?;
    let seed = arguments.number("seed", u64::from(std::process::id()))?;
    let clients = arguments.number("connections", 8)? as usize;
    let capacity = arguments.size("capacity", 1 << 30)?;
    let binary = arguments.server();
    arguments.finish()?;
    let binary = match binary {
        Some(binary) => binary,
        None => workspace::build_server(Profile::Test)?,
    };
    let scratch = workspace::scratch("kill")?;
    let options = ["--capacity", &capacity.to_string(), "--memory", "128MiB", "--sync", "always"];
    let options = ServerOptions::new(&binary, &scratch.join("data"), &options)?;
    let mut run = Run {
        shared: Shared::new(options.address, clients),
        clients: (0..clients).map(|index| Client::new(index, seed)).collect(),
        random: Random::new(seed),
        options,
        in_doubt: 0,
        kills: 0,
    };
    run.cycles(cycles).map_err(|failure| {
        format!("seed {seed}, kill {}: {failure}\nthe data is kept in {}", run.kills, scratch.display())
    })?;
    println!(
        "test-kill: {cycles} cycles, {} kills, {} writes acknowledged, none lost; {} in doubt; seed {seed}",
        run.kills,
        run.shared.acknowledged.load(Ordering::Relaxed),
        run.in_doubt,
    );
    std::fs::remove_dir_all(scratch)?;
    Ok(())
}

struct Run {
    options: ServerOptions,
    shared: Shared,
    clients: Vec<Client>,
    random: Random,
    in_doubt: usize,
    kills: u64,
}

impl Run {
    fn cycles(&mut self, cycles: u64) -> Result<(), Failure> {
        let mut server = self.options.start()?;
        for cycle in 1..=cycles {
            let before = self.shared.acknowledged.load(Ordering::Relaxed);
            let load_ms = self.load_and_kill(server)?;
            while self.random.one_in(3) {
                self.kill_while_starting()?;
            }
            let begun = Instant::now();
            server = self.options.start()?;
            let ready_ms = begun.elapsed().as_millis();
            self.verify()?;
            let acknowledged = self.shared.acknowledged.load(Ordering::Relaxed) - before;
            println!("  cycle {cycle}: {acknowledged} acknowledged in {load_ms} ms, ready again after {ready_ms} ms");
        }
        // A clean stop after all that, the offline check, and once more the data.
        server.terminate()?;
        self.check_offline()?;
        let server = self.options.start()?;
        self.verify()?;
        server.terminate()
    }

    fn load_and_kill(&mut self, server: Server) -> Result<u64, Failure> {
        // Short runs and long ones alike, so that kills strike the first writes as well as flushes and collections.
        let longest_ms = 20 << self.random.below(8);
        let load_ms = 10 + self.random.below(longest_ms);
        let shared = &self.shared;
        shared.killing.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| -> Result<(), Failure> {
            let threads: Vec<_> =
                self.clients.iter_mut().map(|client| scope.spawn(move || client.load(shared))).collect();
            std::thread::sleep(Duration::from_millis(load_ms));
            shared.killing.store(true, Ordering::SeqCst);
            // The clients end only with the server, so it is killed before their results are looked at.
            let killed = server.kill();
            let ended: Result<(), Failure> =
                threads.into_iter().try_for_each(|thread| thread.join().expect("a client panicked"));
            ended.and(killed)
        })?;
        self.kills += 1;
        self.in_doubt += self.clients.iter().map(Client::in_doubt).sum::<usize>();
        Ok(load_ms)
    }

    fn kill_while_starting(&mut self) -> Result<(), Failure> {
        let server = self.options.spawn()?;
        std::thread::sleep(Duration::from_millis(self.random.below(100)));
        server.kill()?;
        self.kills += 1;
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Failure> {
        let shared = &self.shared;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.clients.iter_mut().map(|client| scope.spawn(move || client.verify(shared))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a client panicked"))
        })
    }

    fn check_offline(&self) -> Result<(), Failure> {
        let output = Command::new(&self.options.binary).arg("check").arg("--data").arg(&self.options.data).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
            return Err(format!("tapetum check is not content: {text}").into());
        }
        Ok(())
    }
}

//! A contender's process: started, told what to do, and stopped (SIGSTOP) whenever it is not its turn, so that what it still
//! does in the background happens in its own turns and disturbs nobody else's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};

use serde::Deserialize;
use serde_json::Value;
use tapetum_bench::server::die_with_parent;
use tapetum_bench::turn::{Command, Report, Setup};

use crate::Failure;

pub struct Contender {
    name: String,
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Contender {
    /// Starts it, and comes back when it has opened its data.
    pub fn start(name: &str, binary: &Path, setup: &Setup) -> Result<Contender, Failure> {
        let mut program = Program::new(binary);
        die_with_parent(&mut program);
        let mut process = program
            .arg(serde_json::to_string(setup)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It may start processes of its own, which stop and go with it.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", binary.display()))?;
        let (commands, answers) = (process.stdin.take(), process.stdout.take());
        let answers = BufReader::new(answers.expect("it was asked for"));
        let mut contender = Contender { name: name.to_owned(), process, commands, answers };
        contender.answer()?;
        contender.signal(libc::SIGSTOP);
        Ok(contender)
    }

    pub fn run(&mut self, command: &Command) -> Result<Report, Failure> {
        self.signal(libc::SIGCONT);
        let commands = self.commands.as_mut().expect("open until the end");
        writeln!(commands, "{}", serde_json::to_string(command)?)?;
        commands.flush()?;
        let report = Report::deserialize(self.answer()?)?;
        self.signal(libc::SIGSTOP);
        Ok(report)
    }

    /// Has it leave its data so that it can be started on them again.
    pub fn end(mut self) -> Result<(), Failure> {
        self.signal(libc::SIGCONT);
        drop(self.commands.take());
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", self.name).into()) }
    }

    fn answer(&mut self) -> Result<Value, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let answer: Value =
            serde_json::from_str(&line).map_err(|_| format!("{} ended without an answer: {line:?}", self.name))?;
        match answer["error"].as_str() {
            Some(error) => Err(format!("{}: {error}", self.name).into()),
            None => Ok(answer),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: takes two integers. The group is our child's own, and the child is not yet waited for.
        unsafe { libc::kill(-(self.process.id() as libc::pid_t), signal) };
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.signal(libc::SIGKILL);
            // It was killed: how it ended is known.
            let _ = self.process.wait();
        }
    }
}

//! The options of `tapetum serve` that say who gets in, and the command line of `tapetum user`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use tapetum_access::gate::Gate;
use tapetum_access::tls::{ClientCertificates, Tls, TlsFiles, VersionMin};

use crate::cli::keyspace_arguments::keyspace_name;
use crate::doors::options::Access;

/// Options of TLS have memcached's names.
#[derive(Debug, Args)]
pub struct AccessArguments {
    /// The users who may log in, by their passwords or certificates: see `tapetum user`. Without, whoever connects may do everything. Read again
    /// on SIGHUP, with the files of TLS
    #[arg(long, value_name = "FILE")]
    users_file: Option<PathBuf>,
    /// TLS at every address but those of Unix sockets and those that begin with notls: the server's certificate in PEM, and those between it
    /// and its authority
    #[arg(long, value_name = "FILE", requires = "ssl_key")]
    ssl_chain_cert: Option<PathBuf>,
    /// The key of the server's certificate, in PEM: readable by its owner alone, and without a password
    #[arg(long, value_name = "FILE", requires = "ssl_chain_cert")]
    ssl_key: Option<PathBuf>,
    /// The authorities of clients' certificates, in PEM
    #[arg(long, value_name = "FILE", requires = "ssl_chain_cert")]
    ssl_ca_cert: Option<PathBuf>,
    /// Whether clients must show a certificate [default: require with --ssl-ca-cert, else none]
    #[arg(long, value_enum, requires = "ssl_ca_cert")]
    ssl_verify_mode: Option<VerifyMode>,
    /// The oldest version of TLS that clients may speak
    #[arg(long, value_enum, requires = "ssl_chain_cert", default_value = "tlsv1.2")]
    ssl_min_version: MinVersion,
    /// Serve other machines though there are no users, or no TLS: everybody who reaches an address may read, change and delete everything,
    /// or read passwords on the way
    #[arg(long)]
    insecure: bool,
    /// With --users-file: the keyspace that everybody may read over UDP, which has no logins
    #[arg(long, value_name = "NAME", requires_all = ["udp", "users_file"], value_parser = keyspace_name())]
    udp_anonymous: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VerifyMode {
    /// No client is asked for one
    #[value(alias = "0")]
    None,
    /// Those that have one show it
    #[value(alias = "1")]
    Request,
    /// Without one nobody gets in
    #[value(aliases = ["2", "3", "once"])]
    Require,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MinVersion {
    #[value(name = "tlsv1.2", alias = "2")]
    Tls12,
    #[value(name = "tlsv1.3", alias = "3")]
    Tls13,
}

impl AccessArguments {
    /// Reads the files.
    ///
    /// # Errors
    /// If one cannot be used.
    pub fn open(&self) -> Result<Access, Box<dyn std::error::Error>> {
        let gate = self.users_file.as_deref().map(Gate::open).transpose()?;
        let tls = self.tls_files().map(Tls::open).transpose()?;
        Ok(Access {
            gate: gate.map(Arc::new),
            tls: tls.map(Arc::new),
            is_insecure: self.insecure,
            udp_anonymous: self.udp_anonymous.clone(),
        })
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let (chain, key) = self.ssl_chain_cert.clone().zip(self.ssl_key.clone())?;
        let client_certificates = match (self.ssl_verify_mode, &self.ssl_ca_cert) {
            (_, None) | (Some(VerifyMode::None), _) => ClientCertificates::None,
            (Some(VerifyMode::Request), _) => ClientCertificates::Asked,
            (Some(VerifyMode::Require) | None, _) => ClientCertificates::Needed,
        };
        let version_min = match self.ssl_min_version {
            MinVersion::Tls12 => VersionMin::Tls12,
            MinVersion::Tls13 => VersionMin::Tls13,
        };
        Some(TlsFiles { chain, key, authorities: self.ssl_ca_cert.clone(), client_certificates, version_min })
    }

    /// Whether there is something to read again.
    pub fn has_files(&self) -> bool {
        self.users_file.is_some() || self.ssl_chain_cert.is_some()
    }
}

#[derive(Debug, Subcommand)]
#[command(after_help = USER_HELP)]
pub enum UserCommand {
    /// Add a user, or give one another password and other rights. The password is asked for, and never a word of the command line
    Add {
        /// The user's name
        name: String,
        /// A keyspace to read; may be given several times; * is all of them, and the store itself
        #[arg(long, value_name = "KEYSPACE", value_parser = keyspace_name())]
        read: Vec<String>,
        /// A keyspace to read and write
        #[arg(long, value_name = "KEYSPACE", value_parser = keyspace_name())]
        write: Vec<String>,
        /// A keyspace to make, drop, rename and format, besides reading and writing it
        #[arg(long, value_name = "KEYSPACE", value_parser = keyspace_name())]
        admin: Vec<String>,
        /// Replace who has the name already
        #[arg(long)]
        replace: bool,
        /// No password: the user is known by the name in a certificate alone
        #[arg(long, conflicts_with = "password_file")]
        certificate: bool,
        /// Read the password from this file, without the line's end; - is standard input
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        #[command(flatten)]
        file: UsersFileArguments,
    },
    /// Print the users and their rights
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        file: UsersFileArguments,
    },
    /// Remove a user
    Remove {
        /// The user's name
        name: String,
        #[command(flatten)]
        file: UsersFileArguments,
    },
}

#[derive(Debug, Args)]
pub struct UsersFileArguments {
    /// The users file, as `serve` takes it; `add` makes it if it is not there
    #[arg(long, value_name = "FILE")]
    pub users_file: PathBuf,
}

const USER_HELP: &str = "A running server reads the file again on SIGHUP: `systemctl reload tapetum`, or `kill -HUP PID`. What was taken away \
    from a user ends at the next request.";

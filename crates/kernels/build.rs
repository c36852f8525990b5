//! Compiles the loop around libjpeg-turbo's decoder, with the headers of the library that `turbojpeg-sys` builds.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "images")]
    images();
}

#[cfg(feature = "images")]
fn images() {
    const SOURCE: &str = "src/images/jpeg_decode.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    let include = std::env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys says where its headers are");
    cc::Build::new().file(SOURCE).includes(include.split(',')).warnings(true).compile("tapetum_jpeg_decode");
}

//! What cannot stand together on the command line, whatever SOURCE is: wrong usage, told before anything is looked at.

use clap::ValueEnum;

use super::super::options::Options;
use super::Args;
#[cfg(feature = "remote")]
use crate::store::remote::Address;
use crate::view::Show;

/// # Errors
/// What is wrong with the words taken together.
pub(super) fn check(args: &Args, options: &Options) -> Result<(), String> {
    options.conflict()?;
    if args.read_only && options.read_write {
        return Err("mount option 'rw' cannot be used with '--read-only'".into());
    }
    // What a mount cannot change while it is there is told, and left as it is.
    if options.remount {
        return Ok(());
    }
    if let (Some(long), Some(word)) = (args.show, options.show)
        && long != word
    {
        return Err(format!("mount option 'show={}' cannot be used with '--show {}'", name(word), name(long)));
    }
    #[cfg(feature = "remote")]
    check_place(args, options)?;
    let show = args.show.or(options.show).unwrap_or_default();
    let read_only = args.read_only || options.flags & libc::MS_RDONLY != 0;
    if (args.create || options.create) && read_only {
        return Err("'--create' cannot be used with '--read-only' (or -o ro): nothing could be copied to the mount".into());
    }
    if options.follow_links && !read_only && !show.is_decoded() {
        return Err("mount option 'follow_links' needs a read-only mount: -o ro,follow_links".into());
    }
    if options.dtype.is_some() && show != Show::Npy {
        return Err("mount option 'dtype' needs '--show npy'".into());
    }
    if (args.spill.is_some() || options.spill.is_some()) && !show.is_decoded() {
        return Err("'--spill' needs '--show npy' or '--show raw'".into());
    }
    Ok(())
}

fn name(show: Show) -> String {
    show.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What is for a frame at a URL only, and what is not for one.
#[cfg(feature = "remote")]
fn check_place(args: &Args, options: &Options) -> Result<(), String> {
    let Some(address) = Address::parse(&args.source) else {
        let long = [("--connections", args.connections.is_some()), ("--disk-cache", args.disk_cache.is_some())];
        let long = long.into_iter().find(|(_, given)| *given).map(|(name, _)| name);
        return match long.or(options.for_urls.first().map(String::as_str)) {
            Some(name) => Err(format!("'{name}' is for a frame at a URL, and SOURCE is not a URL")),
            None => Ok(()),
        };
    };
    let of_local = [
        ("--create", args.create || options.create),
        ("--locking", args.locking || options.locking),
        ("-o follow_links", options.follow_links),
        ("-o cross", options.tree.cross),
        ("-o b2z=dir", options.tree.archives),
    ];
    if let Some((name, _)) = of_local.into_iter().find(|(_, given)| *given) {
        return Err(format!("'{name}' cannot be used with a frame at a URL, which is shown read-only"));
    }
    let is_tree_wanted = options.tree != super::super::options::TreeOptions::default();
    if is_tree_wanted && address.is_ok_and(|address| address.is_http()) {
        return Err(
            "-o suffixes, frames, noframes and timeouts are for directories, and a URL of a web server is one frame".into()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn checked(words: &str) -> Result<(), String> {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let Line { args } = Line::try_parse_from(std::iter::once("mount").chain(words.split(' '))).unwrap();
        let mut options = Options::default();
        args.options.iter().try_for_each(|list| options.add(list))?;
        check(&args, &options)
    }

    #[test]
    fn what_cannot_stand_together_is_wrong_usage() {
        for (words, said) in [
            ("--create -r a b", "'--create' cannot be used with '--read-only'"),
            ("-o create,ro a b", "'--create' cannot be used with '--read-only'"),
            ("-r -o rw a b", "'rw' cannot be used with '--read-only'"),
            ("--show raw -o show=npy a b", "'show=npy' cannot be used with '--show raw'"),
            ("-o dtype=<f4 a b", "'dtype' needs '--show npy'"),
            ("--show raw -o dtype=<f4 a b", "'dtype' needs '--show npy'"),
            ("--spill none a b", "'--spill' needs '--show npy'"),
            ("-o spill=x,show=sparse a b", "'--spill' needs '--show npy'"),
            ("-o follow_links a b", "'follow_links' needs a read-only mount"),
        ] {
            let error = checked(words).unwrap_err();
            assert!(error.contains(said), "{words}: {error}");
        }
        for words in [
            "-r a b",
            "-o rw a b",
            "-o rw --show npy a b",
            "-r -o rw,ro a b",
            "--create a b",
            "--show npy -o dtype=<f4,show=npy a b",
            "--show raw --spill none a b",
            "-o ro,follow_links a b",
            "--show npy -o follow_links a b",
            "-r -o remount,show=npy,dtype=<f4 a b",
        ] {
            assert_eq!(checked(words), Ok(()), "{words}");
        }
    }

    #[cfg(feature = "remote")]
    #[test]
    fn what_is_for_urls_is_named() {
        for (words, said) in [
            ("--disk-cache x a b", "'--disk-cache' is for a frame at a URL"),
            ("--connections 3 a b", "'--connections' is for a frame at a URL"),
            ("-o ro,region=x,anonymous a b", "'region' is for a frame at a URL"),
            ("-o disk_cache=x a b", "'disk_cache' is for a frame at a URL"),
            ("--create s3://b/k b", "'--create' cannot be used with a frame at a URL"),
            ("-o b2z=dir s3://b/k b", "'-o b2z=dir' cannot be used with a frame at a URL"),
            ("-o suffixes=.x https://h/k b", "a URL of a web server is one frame"),
        ] {
            let error = checked(words).unwrap_err();
            assert!(error.contains(said), "{words}: {error}");
        }
        for words in ["-o rw,region=x s3://b/k b", "-o suffixes=.x s3://b/k b", "--disk-cache x --connections 3 https://h/k b"] {
            assert_eq!(checked(words), Ok(()), "{words}");
        }
    }
}

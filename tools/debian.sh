# Read by the programs beside it: packages of this machine, and a Debian release in a root directory of its own.

cache=${CELERY_RABBIT_DELAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/celery-rabbit-delay}

fail() {
    echo "${0##*/}: $2" >&2
    exit "$1"
}

# Several test processes may ask at once; one installs, the others wait for it.
lock() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9 2>/dev/null || true # macOS has none
}

# first PROGRAM...: prints the path of the first that there is.
first() {
    for program in "$@"; do
        ! command -v "$program" || return 0
    done
    return 1
}

# apt_install PACKAGE...: as root; shows what apt-get says only if it fails.
apt_install() {
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1 9>&- || cat "$log" >&2
    rm "$log"
}

# once PROGRAM HINT: prints a program of a Debian release, after `install_debian` where it is missing.
once() {
    if [ ! -x "$1" ]; then
        [ "$(id -u)" = 0 ] || fail 1 "run me as root (debootstrap makes a root directory), $2"
        command -v apt-get >/dev/null || fail 1 "this comes from Debian, with apt-get; $2"
        lock
        [ -x "$1" ] || install_debian >&2 9>&-
    fi
    echo "$1"
}

# debian_root SUITE ROOT PACKAGE: the release with the package, in a new root directory.
debian_root() {
    apt-get update
    command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap

    scripts=/usr/share/debootstrap/scripts
    [ -e "$scripts/$1" ] || ln -s sid "$scripts/$1" # an older debootstrap does not know newer releases
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
        head -n 1)
    [ -n "$mirror" ] || fail 1 "apt knows no mirror of Debian; I need one, and apt-get update"

    rm -rf "$2"
    debootstrap --variant=minbase "$1" "$2" "$mirror"
    cp /etc/hosts "$2/etc/hosts"
    printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d" # start no service
    chmod +x "$2/usr/sbin/policy-rc.d"
    unshare --mount sh -c "mount --rbind /proc $2/proc && mount --rbind /dev $2/dev &&
        exec chroot $2 apt-get install -y --no-install-recommends $3"
    chroot "$2" apt-get clean
}

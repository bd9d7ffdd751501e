# Read by tools/get-rabbitmq and tools/get-python: a Debian release in a root directory of its own, beside the system.

cache=${CELERY_RABBIT_DELAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/celery-rabbit-delay}

fail() {
    echo "${0##*/}: $2" >&2
    exit "$1"
}

# Several test processes may ask at once; one installs, the others wait for it.
lock() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
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

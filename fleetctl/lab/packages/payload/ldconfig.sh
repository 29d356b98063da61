#!/bin/sh
set -e
ldconfig
exit 0

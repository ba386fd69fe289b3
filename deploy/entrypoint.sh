#!/bin/sh
# The image's entry point. With the emulator's license accepted and its configuration mounted, the
# image behaves as the official Event Hubs emulator; otherwise it is plain Penstock.
config=/Eventhubs_Emulator/ConfigFiles/Config.json
if [ "$ACCEPT_EULA" = Y ] && [ -e "$config" ]; then
    export PENSTOCK_EMULATOR=1 PENSTOCK_CONFIG="${PENSTOCK_CONFIG:-$config}"
elif [ "$ACCEPT_EULA" = Y ]; then
    echo "ACCEPT_EULA=Y, but there is no $config: this is Penstock, not the emulator." >&2
fi
exec penstock "$@"

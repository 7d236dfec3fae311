// See inputs.h.
#include "plan/inputs.h"
#include "base/file.h"
#include "base/text.h"
#include "model/families.h"
#include "model/hf_config.h"
#include <string.h>

static bool is_preset(const char *text) {
    for (const char *const *name = model_preset_names(NULL); *name; name++)
        if (strcmp(*name, text) == 0) return true;
    return false;
}

int plan_read_model(const char *text, struct model_config *out, struct err *err) {
    if (is_preset(text)) return model_preset(text, out, err);
    char path[4096];
    if (file_join(path, sizeof path, text, "config.json", err) != 0) return -1;
    if (file_exists(path)) return hf_config_read(path, out, err);
    if (file_exists(text)) return hf_config_read(text, out, err);
    size_t count;
    const char *const *names = model_preset_names(&count);
    const char *nearest = text_nearest(text, names, count);
    return err_set(err, ERR_USAGE,
                   "model \"%s\": expected a preset (`weft config presets` lists %zu), a Hugging "
                   "Face config.json or its folder, or a training configuration (.yaml)%s%s%s",
                   text, count, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                   nearest ? "\"?" : "");
}

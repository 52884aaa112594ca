decode_image = ImageReadMode = None
